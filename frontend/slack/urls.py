"""URLs of Slack."""

from __future__ import annotations

from django.urls import URLPattern, path

from frontend.slack import views

urlpatterns: list[URLPattern] = [
    path("slack/command", views.command, name="slack-command"),
    path("slack/interaction", views.interaction, name="slack-interaction"),
    path("slack/link", views.link, name="slack-link"),
]
