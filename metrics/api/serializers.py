"""Parameters of the metrics API, checked."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from denvweb.core.units import parse_duration_s
from denvweb.listing import ChoiceOfField, TimedQuery, WordField
from metrics.domain.figures import GROUPINGS

_MAX_SPAN_S = 30 * 86400.0


@extend_schema_field(OpenApiTypes.STR)
class DurationField(serializers.Field[float, str, float, Any]):
    """Seconds, written as `15m`; a bare number is seconds too."""

    def to_internal_value(self, data: str) -> float:
        """Seconds of the text."""
        text = str(data).strip()
        seconds = float(text) if text.replace(".", "", 1).isdecimal() else parse_duration_s(text)
        if not seconds or seconds > _MAX_SPAN_S:
            raise serializers.ValidationError(f"`{text}` is no time over 0 and up to 30 days; write it as `15m` or `1h`")
        return seconds


@extend_schema_field(OpenApiTypes.STR)
class NamesField(serializers.Field[tuple[str, ...], str, str, Any]):
    """A comma-separated list."""

    def to_internal_value(self, data: str) -> tuple[str, ...]:
        """The names, without blanks."""
        return tuple(name for part in str(data).split(",") if (name := part.strip()))


class MetricsQuery(serializers.Serializer[Any]):
    """`?since=15m&by=release`."""

    since = DurationField(default=900.0, help_text="how far back, such as `15m`")
    by = serializers.ChoiceField(choices=GROUPINGS, default="release")


class SeriesQuery(serializers.Serializer[Any]):
    """`?names=ttft.p99,itl.p99&since=1h&step=10s&by=release`."""

    names = NamesField(help_text="lines, comma-separated: `ttft.p99`, `requests`, `phase.queue`, `gauge.kv_use`, `engine.preemptions`, ...")
    since = DurationField(default=3600.0, help_text="how far back, such as `1h`")
    step = DurationField(default=10.0, help_text="rounded up to whole 10 seconds")
    by = serializers.ChoiceField(choices=GROUPINGS, default="release")


class EventsQuery(TimedQuery):
    """`?before=120&limit=50`, and which events: what an audit asks for."""

    before = serializers.IntegerField(default=None, min_value=1, max_value=2**62, help_text="`next` of the page before")
    kind = WordField(max_length=60, help_text="those whose kind begins so: `rollout.`, `change.refused`")
    level = ChoiceOfField(("info", "warn", "bad"))
    actor = WordField(max_length=150, help_text="who did it")
    via = WordField(max_length=12, help_text="through what: `ui`, `api`, `cli`, `slack`, `alarm`, `system`")
    text = WordField(max_length=200, help_text="those whose sentence has it, in whatever case")


class AllEventsQuery(EventsQuery):
    """The same over all stages, or of one model, stage, fleet or rollout."""

    stage = WordField()
    model = WordField(max_length=63)
    fleet = WordField(max_length=63)
    rollout = WordField(max_length=24)
