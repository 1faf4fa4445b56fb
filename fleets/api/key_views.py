"""API keys of a stage's clients over REST; whoever administers the model may make and revoke them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import Action, access_stage
from denvweb.api import schema_of
from denvweb.auth import via_of
from denvweb.core import wire
from denvweb.idempotency import idempotent, idempotent_secret
from fleets.domain.allowance import Allowance
from fleets.domain.views import ApiKeys, NewApiKey
from fleets.selectors import keys_view
from fleets.services import key_create, key_revoke, keys_require


@dataclass(frozen=True, slots=True)
class ApiKeyBody:
    """Who the key is for, and what it may ask for."""

    client: str
    allowance: Allowance = field(default_factory=Allowance)
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class KeysRequiredBody:
    """Whether requests without a key are refused."""

    required: bool


class ApiKeysView(APIView):
    """GET, POST and PATCH /stages/{model}/{name}/keys."""

    @extend_schema(responses=schema_of(ApiKeys), operation_id="keys_list")
    def get(self, request: Request, model: str, name: str) -> Response:
        """The keys of a stage's clients, without their secrets."""
        access_stage(request.user, f"{model}/{name}", Action.ADMIN)
        return Response(wire.to_plain(keys_view(stage=f"{model}/{name}")))

    @extend_schema(request=schema_of(ApiKeyBody), responses={201: schema_of(NewApiKey)}, operation_id="key_create")
    @idempotent_secret
    def post(self, request: Request, model: str, name: str) -> Response:
        """Make a key; its text is in this answer only. From the first on, requests without a key are refused."""
        access_stage(request.user, f"{model}/{name}", Action.ADMIN)
        body = wire.from_plain(request.data or {}, ApiKeyBody)
        made = key_create(
            stage=f"{model}/{name}",
            client=body.client,
            allowance=body.allowance,
            expires_at=body.expires_at,
            actor=request.user.get_username(),
            via=via_of(request),
        )
        return Response(wire.to_plain(made), status=status.HTTP_201_CREATED)


class KeysRequiredView(APIView):
    """POST /stages/{model}/{name}/keys-required."""

    @extend_schema(request=schema_of(KeysRequiredBody), responses=schema_of(ApiKeys), operation_id="keys_require")
    @idempotent
    def post(self, request: Request, model: str, name: str) -> Response:
        """Refuse requests without a key, or take them all."""
        access_stage(request.user, f"{model}/{name}", Action.ADMIN)
        required = wire.from_plain(request.data or {}, KeysRequiredBody).required
        keys_require(stage=f"{model}/{name}", required=required, actor=request.user.get_username(), via=via_of(request))
        return Response(wire.to_plain(keys_view(stage=f"{model}/{name}")))


class ApiKeyView(APIView):
    """DELETE /stages/{model}/{name}/keys/{id}."""

    @extend_schema(responses={204: None}, operation_id="key_revoke")
    def delete(self, request: Request, model: str, name: str, id: str) -> Response:
        """Take a key back."""
        access_stage(request.user, f"{model}/{name}", Action.ADMIN)
        key_revoke(stage=f"{model}/{name}", key=id, actor=request.user.get_username(), via=via_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)
