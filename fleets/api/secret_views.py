"""Stored secrets over REST: written, never read. One for a model is its administrators' business, one for every model takes a superuser."""

from __future__ import annotations

from dataclasses import dataclass

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import EVERY_MODEL, Action, access_model, actions_of
from denvweb.api import schema_of
from denvweb.auth import via_of
from denvweb.core import wire
from denvweb.core.errors import ForbiddenError, NotFoundError
from denvweb.idempotency import idempotent
from denvweb.listing import NamesQuery, by_name
from fleets.domain.views import SecretView as Stored
from fleets.selectors import secret_names, secrets_view
from fleets.services import secret_remove, secret_set


@dataclass(frozen=True, slots=True)
class SecretBody:
    """A secret for the releases of one model, or of all."""

    name: str
    value: str
    model: str = EVERY_MODEL


@dataclass(frozen=True, slots=True)
class SecretsPage:
    """Those that the caller may set."""

    results: tuple[Stored, ...]
    next: str | None = None


def _access(request: Request, model: str) -> None:
    if model == EVERY_MODEL:
        if not request.user.is_superuser:
            raise ForbiddenError("A secret for every model takes an administrator; name the model that it is for.", code="role-missing")
        return
    access_model(request.user, model, Action.ADMIN)


class SecretsView(APIView):
    """GET and POST /secrets."""

    @extend_schema(parameters=[NamesQuery], responses=schema_of(SecretsPage), operation_id="secrets_list")
    def get(self, request: Request) -> Response:
        """The secrets that the caller may set, without their values."""
        user = request.user
        mine = [one for one in secrets_view() if user.is_superuser or Action.ADMIN in actions_of(user, one.model)]
        return Response(wire.to_plain(SecretsPage(*by_name(mine, request, lambda one: one.name))))

    @extend_schema(request=schema_of(SecretBody), responses={200: schema_of(Stored), 201: schema_of(Stored)}, operation_id="secret_set")
    @idempotent
    def post(self, request: Request) -> Response:
        """Store a secret, or a new value of one (200). Nodes that run it have it at once, engines with their next start."""
        body = wire.from_plain(request.data or {}, SecretBody)
        _access(request, body.model)
        new = secret_set(name=body.name, value=body.value, model=body.model, actor=request.user.get_username(), via=via_of(request))
        made = next(one for one in secrets_view() if one.name == body.name)
        return Response(wire.to_plain(made), status=status.HTTP_201_CREATED if new else status.HTTP_200_OK)


class SecretView(APIView):
    """DELETE /secrets/{name}."""

    @extend_schema(responses={204: None}, operation_id="secret_remove")
    def delete(self, request: Request, name: str) -> Response:
        """Remove a secret that nothing uses."""
        model = secret_names().get(name)
        if model is None or Action.ADMIN not in actions_of(request.user, model):
            raise NotFoundError(f"There is no secret {name}.", code="secret-unknown")
        _access(request, model)
        secret_remove(name=name, actor=request.user.get_username(), via=via_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)
