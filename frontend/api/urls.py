"""REST URLs of the frontend app: settings."""

from __future__ import annotations

from django.urls import URLPattern, path

from frontend.api import channels, slack

urlpatterns: list[URLPattern] = [
    path("slack", slack.SlackAppEndpoint.as_view(), name="api-slack"),
    path("channels", channels.ChannelsView.as_view(), name="api-channels"),
    path("channels/<str:id>", channels.ChannelDetailView.as_view(), name="api-channel"),
]
