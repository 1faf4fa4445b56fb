"""REST URLs of the fleets app."""

from __future__ import annotations

from django.urls import URLPattern, path

from fleets.api.views import FleetDetailView, FleetListView

urlpatterns: list[URLPattern] = [
    path("fleets", FleetListView.as_view()),
    path("fleets/<str:name>", FleetDetailView.as_view()),
]
