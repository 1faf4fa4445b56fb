"""REST of one's own account: who am I, my tokens, my sessions, and who I am at the sign-in provider."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.urls import URLPattern, path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import roles_of
from denvweb.api import StrictSerializer, schema_of
from denvweb.auth import user_of, via_of
from denvweb.core import wire
from denvweb.idempotency import idempotent_secret
from denvweb.listing import LatestQuery, NamesQuery, by_name, by_time, time_key
from denvweb.models import ApiToken
from frontend.accounts.sessions import SessionView, session_end, sessions_of
from frontend.accounts.tokens import TokenView, token_make, token_revoke, tokens_of
from frontend.oidc.people import IdentityView, identities_of, identity_unlink


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
class TokensPage:
    """One's own; an administrator's list has everybody's."""

    results: tuple[TokenView, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class SessionsPage:
    """One's own."""

    results: tuple[SessionView, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class IdentitiesPage:
    """One's own."""

    results: tuple[IdentityView, ...]
    next: str | None = None


class TokenRequest(StrictSerializer):
    """What a new token is for."""

    # No `label` field of the base class is meant: this one is the token's.
    name = serializers.CharField(max_length=80, required=False, allow_blank=True, default="")
    scope = serializers.ChoiceField(choices=ApiToken.Scope.values, default=ApiToken.Scope.API)
    days = serializers.IntegerField(min_value=1, max_value=3650, required=False, default=None, allow_null=True, help_text="until it ends")


class MeEndpoint(APIView):
    """GET /me."""

    @extend_schema(responses=schema_of(MeView), operation_id="me")
    def get(self, request: Request) -> Response:
        """Who the caller is."""
        return Response(wire.to_plain(MeView(request.user.get_username(), bool(request.user.is_superuser), roles_of(request.user))))


class TokensEndpoint(APIView):
    """GET and POST /tokens."""

    @extend_schema(parameters=[LatestQuery], responses=schema_of(TokensPage), operation_id="tokens_list")
    def get(self, request: Request) -> Response:
        """Tokens that are not revoked, newest first."""
        return Response(
            wire.to_plain(TokensPage(*by_time(tokens_of(user_of(request)), request, lambda token: time_key(token.created_at, token.id))))
        )

    @extend_schema(request=TokenRequest, responses={201: schema_of(NewTokenView)}, operation_id="token_create")
    @idempotent_secret
    def post(self, request: Request) -> Response:
        """Make a token that acts for the caller; a router's needs an administrator."""
        wanted = TokenRequest(data=request.data)
        wanted.is_valid(raise_exception=True)
        text = token_make(user=user_of(request), **wanted.validated_data, via=via_of(request))
        return Response(wire.to_plain(NewTokenView(token=text, scope=wanted.validated_data["scope"])), status=status.HTTP_201_CREATED)


class TokenEndpoint(APIView):
    """DELETE /tokens/{id}."""

    @extend_schema(responses={204: None}, operation_id="token_revoke")
    def delete(self, request: Request, id: str) -> Response:
        """Take a token back; it is good for nothing from now on, a router's within ten seconds."""
        token_revoke(id=id, user=user_of(request), via=via_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class SessionsEndpoint(APIView):
    """GET /sessions."""

    @extend_schema(parameters=[LatestQuery], responses=schema_of(SessionsPage), operation_id="sessions_list")
    def get(self, request: Request) -> Response:
        """Browsers in which the caller is signed in."""
        key = request.session.session_key if hasattr(request, "session") else None
        found = sessions_of(user_of(request), current_key=key)
        return Response(
            wire.to_plain(SessionsPage(*by_time(found, request, lambda one: time_key(one.signed_in_at or one.expires_at, one.id))))
        )


class SessionEndpoint(APIView):
    """DELETE /sessions/{id}."""

    @extend_schema(responses={204: None}, operation_id="session_end")
    def delete(self, request: Request, id: str) -> Response:
        """Sign a browser of one's own out."""
        session_end(id=id, user=user_of(request), via=via_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class IdentitiesEndpoint(APIView):
    """GET /identities."""

    @extend_schema(parameters=[NamesQuery], responses=schema_of(IdentitiesPage), operation_id="identities_list")
    def get(self, request: Request) -> Response:
        """Who the caller is at the OpenID Connect provider."""
        return Response(wire.to_plain(IdentitiesPage(*by_name(identities_of(user_of(request)), request, lambda one: one.id))))


class IdentityEndpoint(APIView):
    """DELETE /identities/{id}."""

    @extend_schema(responses={204: None}, operation_id="identity_unlink")
    def delete(self, request: Request, id: str) -> Response:
        """Sign in that way no longer; refused when it is the only one."""
        identity_unlink(id=id, account=user_of(request), via=via_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


urlpatterns: list[URLPattern] = [
    path("me", MeEndpoint.as_view()),
    path("tokens", TokensEndpoint.as_view()),
    path("tokens/<str:id>", TokenEndpoint.as_view()),
    path("sessions", SessionsEndpoint.as_view()),
    path("sessions/<str:id>", SessionEndpoint.as_view()),
    path("identities", IdentitiesEndpoint.as_view()),
    path("identities/<str:id>", IdentityEndpoint.as_view()),
]
