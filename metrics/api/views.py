"""REST views of figures and of the journal."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import access_stage, seen_by
from denvweb.api import schema_of
from denvweb.core import wire
from denvweb.listing import checked, cut
from metrics.api.serializers import AllEventsQuery, EventsQuery, MetricsQuery, SeriesQuery
from metrics.domain.views import EventView, FrameView, MetricsView
from metrics.selectors import events_view, frame_view, metrics_view

_EVENT_PAGE = inline_serializer(
    "EventPage",
    {"results": schema_of(EventView)(many=True), "next": serializers.CharField(allow_null=True, help_text="`before` of the next page")},
)


def _page(wanted: dict[str, Any], **narrowed: Any) -> Response:
    limit = wanted.pop("limit")
    shown, following = cut(events_view(**wanted, **narrowed, limit=limit + 1), limit, lambda event: event.seq)
    return Response({"results": wire.to_plain(shown), "next": following})


class StageMetricsView(APIView):
    """Figures of a stage."""

    @extend_schema(parameters=[MetricsQuery], responses=schema_of(MetricsView))
    def get(self, request: Request, model: str, name: str) -> Response:
        """TTFT, ITL, errors and the rest of the last minutes, by release or unit."""
        access_stage(request.user, f"{model}/{name}")
        wanted = checked(MetricsQuery, request)
        view = metrics_view(stage=f"{model}/{name}", span_s=wanted["since"], by=wanted["by"], now=timezone.now())
        return Response(wire.to_plain(view))


class StageSeriesView(APIView):
    """Lines of a stage."""

    @extend_schema(parameters=[SeriesQuery], responses=schema_of(FrameView))
    def get(self, request: Request, model: str, name: str) -> Response:
        """Figures over time, a value a step; null where nothing was measured."""
        access_stage(request.user, f"{model}/{name}")
        wanted = checked(SeriesQuery, request)
        view = frame_view(
            stage=f"{model}/{name}",
            names=wanted["names"],
            span_s=wanted["since"],
            step_s=wanted["step"],
            by=wanted["by"],
            now=timezone.now(),
        )
        return Response(wire.to_plain(view))


class StageEventsView(APIView):
    """The journal of a stage."""

    @extend_schema(parameters=[EventsQuery], responses=_EVENT_PAGE)
    def get(self, request: Request, model: str, name: str) -> Response:
        """Newest first."""
        access_stage(request.user, f"{model}/{name}")
        return _page(checked(EventsQuery, request), stage=f"{model}/{name}")


class EventsView(APIView):
    """The journal."""

    @extend_schema(parameters=[AllEventsQuery], responses=_EVENT_PAGE)
    def get(self, request: Request) -> Response:
        """Newest first."""
        return _page(checked(AllEventsQuery, request), models=seen_by(request.user).only)
