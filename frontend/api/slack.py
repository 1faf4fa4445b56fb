"""REST: the Slack app. Administrators only; secrets go in and never come out."""

from __future__ import annotations

from dataclasses import dataclass

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.api import StrictSerializer, schema_of
from denvweb.auth import user_of, via_of
from denvweb.core import wire
from denvweb.listing import NamesQuery, by_name
from frontend.api.channels import IsAdministrator
from frontend.models import SlackApp, SlackUser
from frontend.slack.app import slack_app_set
from frontend.slack.people import Caller, unlink


@dataclass(frozen=True, slots=True)
class SlackAppView:
    """The app, and which of its secrets are set."""

    team: str
    bot_token_set: bool
    signing_secret_set: bool
    app_token_set: bool


class SlackAppRequest(StrictSerializer):
    """The app's workspace and secrets; one that is left out stays as it is."""

    team = serializers.RegexField(r"^T[A-Z0-9]{8,15}$", help_text="id of the workspace, such as T0123456789")
    bot_token = serializers.RegexField(r"^xoxb-[\w-]+$", required=False, default="", max_length=200, allow_blank=True)
    signing_secret = serializers.RegexField(r"^[\w-]+$", required=False, default="", max_length=100, allow_blank=True)
    app_token = serializers.RegexField(r"^xapp-[\w-]+$", required=False, default="", max_length=300, allow_blank=True)


class SlackAppEndpoint(APIView):
    """GET and PUT /slack."""

    permission_classes = [IsAuthenticated, IsAdministrator]

    @extend_schema(responses=schema_of(SlackAppView), operation_id="slack_retrieve")
    def get(self, request: Request) -> Response:
        """Which workspace is set up; an empty team when none is."""
        row = SlackApp.objects.first() or SlackApp()
        view = SlackAppView(row.team, bool(row.bot_token), bool(row.signing_secret), bool(row.app_token))
        return Response(wire.to_plain(view))

    @extend_schema(request=SlackAppRequest, responses={204: None}, operation_id="slack_set")
    def put(self, request: Request) -> Response:
        """Set the app up, or change a secret."""
        wanted = SlackAppRequest(data=request.data)
        wanted.is_valid(raise_exception=True)
        slack_app_set(**wanted.validated_data, actor=request.user.get_username(), via=via_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


@dataclass(frozen=True, slots=True)
class SlackLink:
    """An account in Slack that acts with one's roles."""

    id: str  # of the workspace and of the account there
    team: str
    user: str


@dataclass(frozen=True, slots=True)
class SlackLinks:
    """One's own."""

    results: tuple[SlackLink, ...]
    next: str | None


class SlackLinksView(APIView):
    """GET /slack/links."""

    @extend_schema(parameters=[NamesQuery], responses=schema_of(SlackLinks), operation_id="slack_links_list")
    def get(self, request: Request) -> Response:
        """One's own accounts in Slack. They are linked from there: `/denv status` answers with a link that is good once."""
        rows = SlackUser.objects.filter(account=request.user.pk)
        links = (SlackLink(f"{row.team}.{row.user}", row.team, row.user) for row in rows)
        return Response(wire.to_plain(SlackLinks(*by_name(links, request, lambda link: link.id))))


class SlackLinkView(APIView):
    """DELETE /slack/links/ID."""

    @extend_schema(responses={204: None}, operation_id="slack_link_delete")
    def delete(self, request: Request, id: str) -> Response:
        """That Slack account is nobody here any more."""
        team, _, user = id.partition(".")
        unlink(Caller(team, user), account=user_of(request), via=via_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)
