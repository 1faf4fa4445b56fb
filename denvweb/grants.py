"""REST: who is what for which model. For whoever administers the model; `*` is for superusers."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import URLPattern, path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import Role, access_model
from denvweb.api import StrictSerializer, schema_of
from denvweb.auth import user_of, via_of
from denvweb.core import wire
from denvweb.idempotency import idempotent
from denvweb.listing import NamesQuery, by_name
from frontend.accounts.roles import GrantView, grant_give, grant_take, grants_of, policies, policy_set


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


class GrantsEndpoint(APIView):
    """GET and POST /grants."""

    @extend_schema(parameters=[NamesQuery], responses=schema_of(GrantsPage), operation_id="grants_list")
    def get(self, request: Request) -> Response:
        """The roles that the caller may change."""
        found = by_name(grants_of(user_of(request)), request, lambda one: f"{one.model} {one.user} {one.role} {one.group}")
        return Response(wire.to_plain(GrantsPage(*found)))

    @extend_schema(request=GrantRequest, responses={201: schema_of(GrantView)}, operation_id="grant_create")
    @idempotent
    def post(self, request: Request) -> Response:
        """Give somebody a role; once more changes nothing."""
        wanted = GrantRequest(data=request.data)
        wanted.is_valid(raise_exception=True)
        name, model, role = (wanted.validated_data[field] for field in ("user", "model", "role"))
        given = grant_give(name=name, model=model, role=role, by=user_of(request), via=via_of(request))
        return Response(wire.to_plain(given), status=status.HTTP_201_CREATED)


class GrantEndpoint(APIView):
    """DELETE /grants/{id}."""

    @extend_schema(responses={204: None}, operation_id="grant_delete")
    def delete(self, request: Request, id: int) -> Response:
        """Take a role away."""
        grant_take(id=id, by=user_of(request), via=via_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class PolicyEndpoint(APIView):
    """GET and PUT /policies/{model}."""

    @extend_schema(responses=schema_of(PolicyView), operation_id="policy_retrieve")
    def get(self, request: Request, policy_model: str) -> Response:
        """Whether two people are needed."""
        access_model(request.user, policy_model)
        return Response(wire.to_plain(PolicyView(policy_model, policies().get(policy_model, False))))

    @extend_schema(request=PolicyRequest, responses=schema_of(PolicyView), operation_id="policy_set")
    def put(self, request: Request, policy_model: str) -> Response:
        """Set it."""
        wanted = PolicyRequest(data=request.data)
        wanted.is_valid(raise_exception=True)
        differs = wanted.validated_data["approver_differs"]
        policy_set(model=policy_model, approver_differs=differs, by=user_of(request), via=via_of(request))
        return Response(wire.to_plain(PolicyView(policy_model, differs)))


urlpatterns: list[URLPattern] = [
    path("grants", GrantsEndpoint.as_view()),
    path("grants/<int:id>", GrantEndpoint.as_view()),
    path("policies/<str:policy_model>", PolicyEndpoint.as_view()),
]
