"""URLs that agents and routers use, but for the sync of agents, which does not pass through Django (fleets.api.sync)."""

from __future__ import annotations

from django.urls import URLPattern, path

from fleets.api import program_views

urlpatterns: list[URLPattern] = [
    path("agent/v1/join", program_views.join),
    path("agent/v1/logs", program_views.logs),
    path("router/v1/table", program_views.table),
    path("router/v1/report", program_views.router_report),
]
