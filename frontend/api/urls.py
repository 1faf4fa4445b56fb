"""REST URLs of the frontend app: settings."""

from __future__ import annotations

from django.urls import URLPattern, path

from frontend.api import channels, slack, whatif

urlpatterns: list[URLPattern] = [
    path("slack", slack.SlackAppEndpoint.as_view(), name="api-slack"),
    path("slack/links", slack.SlackLinksView.as_view(), name="api-slack-links"),
    path("slack/links/<str:id>", slack.SlackLinkView.as_view(), name="api-slack-link"),
    path("stages/<str:model>/<str:name>/what-if", whatif.WhatIfEndpoint.as_view(), name="api-what-if"),
    path("channels", channels.ChannelsView.as_view(), name="api-channels"),
    path("channels/<str:id>", channels.ChannelDetailView.as_view(), name="api-channel"),
]
