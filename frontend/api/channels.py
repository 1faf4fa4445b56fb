"""REST: where notices go. Administrators only."""

from __future__ import annotations

from dataclasses import dataclass

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.api import StrictSerializer, schema_of
from denvweb.auth import via_of
from denvweb.core import wire
from denvweb.idempotency import idempotent_secret
from denvweb.listing import NamesQuery, by_name
from metrics.domain.views import ChannelView
from metrics.selectors import channels_view
from metrics.services import channel_create, channel_delete, channel_switch


@dataclass(frozen=True, slots=True)
class ChannelsPage:
    """All of them."""

    results: tuple[ChannelView, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class NewChannelView:
    """A channel that was made; `secret` is what its calls are signed with, shown this once."""

    id: str
    secret: str


class ChannelRequest(StrictSerializer):
    """A Slack channel by its id, or a webhook by its https address."""

    kind = serializers.ChoiceField(choices=("slack", "webhook"))
    name = serializers.CharField(max_length=60)
    address = serializers.CharField(max_length=500)
    allow_private = serializers.BooleanField(default=False, help_text="let a webhook be inside of one's own network")


class ChannelSwitch(StrictSerializer):
    """On or off."""

    enabled = serializers.BooleanField()


class IsAdministrator(BasePermission):
    """Superusers."""

    message = "Only an administrator may see and change where notices go."

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Whether the caller is one."""
        return bool(request.user.is_superuser)


class ChannelsView(APIView):
    """GET and POST /channels."""

    permission_classes = [IsAuthenticated, IsAdministrator]

    @extend_schema(parameters=[NamesQuery], responses=schema_of(ChannelsPage), operation_id="channels_list")
    def get(self, request: Request) -> Response:
        """Where notices go, and how many wait or did not arrive."""
        return Response(wire.to_plain(ChannelsPage(*by_name(channels_view(), request, lambda one: f"{one.name} {one.id}"))))

    @extend_schema(request=ChannelRequest, responses={201: schema_of(NewChannelView)}, operation_id="channel_create")
    @idempotent_secret
    def post(self, request: Request) -> Response:
        """Have notices sent somewhere."""
        wanted = ChannelRequest(data=request.data)
        wanted.is_valid(raise_exception=True)
        made = channel_create(**wanted.validated_data, actor=request.user.get_username(), via=via_of(request))
        return Response(wire.to_plain(NewChannelView(*made)), status=status.HTTP_201_CREATED)


class ChannelDetailView(APIView):
    """PATCH and DELETE /channels/{id}."""

    permission_classes = [IsAuthenticated, IsAdministrator]

    @extend_schema(request=ChannelSwitch, responses={204: None}, operation_id="channel_switch")
    def patch(self, request: Request, id: str) -> Response:
        """Stop notices, or begin again; what happens in between is not sent later."""
        wanted = ChannelSwitch(data=request.data)
        wanted.is_valid(raise_exception=True)
        channel_switch(id=id, enabled=wanted.validated_data["enabled"], actor=request.user.get_username(), via=via_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(responses={204: None}, operation_id="channel_delete")
    def delete(self, request: Request, id: str) -> Response:
        """Remove it, with what was still to be sent there."""
        channel_delete(id=id, actor=request.user.get_username(), via=via_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)
