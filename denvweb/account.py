"""REST of one's own account: who am I, and my tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.contrib.auth.models import User
from django.urls import URLPattern, path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import roles_of
from denvweb.api import StrictSerializer, schema_of
from denvweb.auth import token_create
from denvweb.core import wire
from denvweb.core.errors import ForbiddenError
from denvweb.idempotency import idempotent_secret
from denvweb.models import ApiToken


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


class TokensEndpoint(APIView):
    """POST /tokens."""

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
        text = token_create(user=request.user, scope=scope, label=wanted.validated_data["name"])
        return Response(wire.to_plain(NewTokenView(token=text, scope=scope)), status=status.HTTP_201_CREATED)


urlpatterns: list[URLPattern] = [path("me", MeEndpoint.as_view()), path("tokens", TokensEndpoint.as_view())]
