"""REST of one's own account: who am I, and my tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.urls import URLPattern, path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import roles_of
from denvweb.api import StrictSerializer, schema_of
from denvweb.auth import token_create, via_of
from denvweb.core import wire
from denvweb.core.errors import ForbiddenError, NotFoundError
from denvweb.idempotency import idempotent_secret
from denvweb.models import ApiToken
from metrics.services import event_append


@dataclass(frozen=True, slots=True)
class MeView:
    """The caller."""

    username: str
    admin: bool
    roles: dict[str, list[str]] = field(default_factory=dict)  # by model or `*`


@dataclass(frozen=True, slots=True)
class NewTokenView:
    """A token, shown this once."""

    token: str
    scope: str


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token that is good; its secret is not kept."""

    id: str
    user: str
    name: str
    scope: str
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class TokensPage:
    """One's own; an administrator's list has everybody's."""

    results: tuple[TokenView, ...]
    next: str | None = None


class TokenRequest(StrictSerializer):
    """What a new token is for."""

    # No `label` field of the base class is meant: this one is the token's.
    name = serializers.CharField(max_length=80, required=False, allow_blank=True, default="")
    scope = serializers.ChoiceField(choices=ApiToken.Scope.values, default=ApiToken.Scope.API)


class MeEndpoint(APIView):
    """GET /me."""

    @extend_schema(responses=schema_of(MeView), operation_id="me")
    def get(self, request: Request) -> Response:
        """Who the caller is."""
        return Response(wire.to_plain(MeView(request.user.get_username(), bool(request.user.is_superuser), roles_of(request.user))))


def _tokens(request: Request) -> QuerySet[ApiToken]:
    """Those that the caller may see and take back."""
    rows = ApiToken.objects.select_related("user").filter(revoked_at=None)
    return rows if request.user.is_superuser else rows.filter(user__username=request.user.get_username())


class TokensEndpoint(APIView):
    """GET and POST /tokens."""

    @extend_schema(responses=schema_of(TokensPage), operation_id="tokens_list")
    def get(self, request: Request) -> Response:
        """Tokens that are not revoked, newest first."""
        views = tuple(
            TokenView(row.pk, row.user.get_username(), row.label, row.scope, row.created_at, row.expires_at)
            for row in _tokens(request).order_by("-created_at", "pk")
        )
        return Response(wire.to_plain(TokensPage(views)))

    @extend_schema(request=TokenRequest, responses={201: schema_of(NewTokenView)}, operation_id="token_create")
    @idempotent_secret
    def post(self, request: Request) -> Response:
        """Make a token that acts for the caller; a router's needs an administrator."""
        wanted = TokenRequest(data=request.data)
        wanted.is_valid(raise_exception=True)
        scope = wanted.validated_data["scope"]
        if scope == ApiToken.Scope.ROUTER and not request.user.is_superuser:
            raise ForbiddenError("Only an administrator may make a router's token.")
        assert isinstance(request.user, User)  # the permission classes let nobody else through
        label, actor = wanted.validated_data["name"], request.user.get_username()
        with transaction.atomic():
            text = token_create(user=request.user, scope=scope, label=label)
            sentence = f"{actor} made token {text.partition('.')[0]} ({label or scope})"
            event_append(kind="token.created", sentence=sentence, actor=actor, via=via_of(request))
        return Response(wire.to_plain(NewTokenView(token=text, scope=scope)), status=status.HTTP_201_CREATED)


class TokenEndpoint(APIView):
    """DELETE /tokens/{id}."""

    @extend_schema(responses={204: None}, operation_id="token_revoke")
    def delete(self, request: Request, id: str) -> Response:
        """Take a token back; it is good for nothing from now on, a router's within ten seconds."""
        actor = request.user.get_username()
        with transaction.atomic():
            row = _tokens(request).filter(pk=id).first()
            if row is None:
                raise NotFoundError("There is no such token.")
            ApiToken.objects.filter(pk=row.pk).update(revoked_at=timezone.now())
            sentence = f"{actor} revoked token {row.pk} ({row.label or row.scope}) of {row.user.get_username()}"
            event_append(kind="token.revoked", sentence=sentence, actor=actor, via=via_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


urlpatterns: list[URLPattern] = [
    path("me", MeEndpoint.as_view()),
    path("tokens", TokensEndpoint.as_view()),
    path("tokens/<str:id>", TokenEndpoint.as_view()),
]
