"""REST URLs of the metrics app."""

from __future__ import annotations

from django.urls import URLPattern, path

from metrics.api import views
from metrics.api.audit import AuditVerifyView
from metrics.api.stream import stream

urlpatterns: list[URLPattern] = [
    path("stages/<str:model>/<str:name>/metrics", views.StageMetricsView.as_view(), name="stage-metrics"),
    path("stages/<str:model>/<str:name>/series", views.StageSeriesView.as_view(), name="stage-series"),
    path("stages/<str:model>/<str:name>/events", views.StageEventsView.as_view(), name="stage-events"),
    path("events", views.EventsView.as_view(), name="events"),
    path("audit/verify", AuditVerifyView.as_view(), name="audit-verify"),
    path("stream", stream, name="stream"),
]
