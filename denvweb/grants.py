"""REST: who is what for which model. For whoever administers the model; `*` is for superusers."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.urls import URLPattern, path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import EVERY_MODEL, Action, Role, access_model, actions_of
from denvweb.api import StrictSerializer, schema_of
from denvweb.auth import via_of
from denvweb.core import wire
from denvweb.core.errors import ForbiddenError, NotFoundError
from denvweb.idempotency import idempotent
from denvweb.models import Grant, ModelPolicy
from metrics.services import event_append


@dataclass(frozen=True, slots=True)
class GrantView:
    """One role of one person."""

    id: int
    user: str
    model: str  # or `*`
    role: str
    created_by: str


@dataclass(frozen=True, slots=True)
class GrantsPage:
    """Those that the caller may change."""

    results: tuple[GrantView, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyView:
    """Rules of a model, or of `*`."""

    model: str
    approver_differs: bool  # who approves must not be who started


class GrantRequest(StrictSerializer):
    """A role for somebody."""

    user = serializers.CharField(max_length=150)
    model = serializers.CharField(max_length=63, help_text="its name, or `*`")
    role = serializers.ChoiceField(choices=[role.value for role in Role if role is not Role.NONE])


class PolicyRequest(StrictSerializer):
    """Rules for a model."""

    approver_differs = serializers.BooleanField()


def _may_administer(request: Request, model: str) -> None:
    if model == EVERY_MODEL and not request.user.is_superuser:
        raise ForbiddenError("Only an administrator may decide about all models at once.")
    access_model(request.user, model, Action.ADMIN)


def _view(grant: Grant) -> GrantView:
    return GrantView(grant.pk, grant.user.get_username(), grant.model, grant.role, grant.created_by)


def _write_down(request: Request, kind: str, sentence: str, model: str) -> None:
    actor = request.user.get_username()
    event_append(kind=kind, sentence=f"{actor} {sentence}", actor=actor, via=via_of(request), model="" if model == EVERY_MODEL else model)


class GrantsEndpoint(APIView):
    """GET and POST /grants."""

    @extend_schema(responses=schema_of(GrantsPage), operation_id="grants_list")
    def get(self, request: Request) -> Response:
        """The roles that the caller may change."""
        rows: QuerySet[Grant] = Grant.objects.select_related("user").order_by("model", "user__username", "role")
        mine = [row for row in rows if request.user.is_superuser or Action.ADMIN in actions_of(request.user, row.model)]
        return Response(wire.to_plain(GrantsPage(tuple(map(_view, mine)))))

    @extend_schema(request=GrantRequest, responses={201: schema_of(GrantView)}, operation_id="grant_create")
    @idempotent
    def post(self, request: Request) -> Response:
        """Give somebody a role; once more changes nothing."""
        wanted = GrantRequest(data=request.data)
        wanted.is_valid(raise_exception=True)
        name, model, role = (wanted.validated_data[field] for field in ("user", "model", "role"))
        _may_administer(request, model)
        user = User.objects.filter(username=name).first()
        if user is None:
            raise NotFoundError(f"There is nobody named {name}.")
        with transaction.atomic():
            grant, made = Grant.objects.select_related("user").get_or_create(
                user=user, model=model, role=role, defaults={"created_by": request.user.get_username()}
            )
            if made:
                _write_down(request, "role.given", f"made {name} {role} of {model}", model)
        return Response(wire.to_plain(_view(grant)), status=status.HTTP_201_CREATED)


class GrantEndpoint(APIView):
    """DELETE /grants/{id}."""

    @extend_schema(responses={204: None}, operation_id="grant_delete")
    def delete(self, request: Request, id: int) -> Response:
        """Take a role away."""
        grant = Grant.objects.select_related("user").filter(pk=id).first()
        if grant is None:
            raise NotFoundError("There is no such role.")
        _may_administer(request, grant.model)
        with transaction.atomic():
            grant.delete()
            _write_down(request, "role.taken", f"took {grant.role} of {grant.model} from {grant.user.get_username()}", grant.model)
        return Response(status=status.HTTP_204_NO_CONTENT)


class PolicyEndpoint(APIView):
    """GET and PUT /policies/{model}."""

    @extend_schema(responses=schema_of(PolicyView), operation_id="policy_retrieve")
    def get(self, request: Request, policy_model: str) -> Response:
        """Whether two people are needed."""
        access_model(request.user, policy_model)
        differs = ModelPolicy.objects.filter(model=policy_model, approver_differs=True).exists()
        return Response(wire.to_plain(PolicyView(policy_model, differs)))

    @extend_schema(request=PolicyRequest, responses=schema_of(PolicyView), operation_id="policy_set")
    def put(self, request: Request, policy_model: str) -> Response:
        """Set it."""
        wanted = PolicyRequest(data=request.data)
        wanted.is_valid(raise_exception=True)
        _may_administer(request, policy_model)
        differs = wanted.validated_data["approver_differs"]
        with transaction.atomic():
            ModelPolicy.objects.update_or_create(model=policy_model, defaults={"approver_differs": differs})
            sentence = f"wants {'somebody else than who started it' if differs else 'any approver'} to approve rollouts of {policy_model}"
            _write_down(request, "policy.set", sentence, policy_model)
        return Response(wire.to_plain(PolicyView(policy_model, differs)))


urlpatterns: list[URLPattern] = [
    path("grants", GrantsEndpoint.as_view()),
    path("grants/<int:id>", GrantEndpoint.as_view()),
    path("policies/<str:policy_model>", PolicyEndpoint.as_view()),
]
