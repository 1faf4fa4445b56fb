"""Writes of the metrics app."""

from __future__ import annotations

from metrics.services.alarms import alarm_look
from metrics.services.ingest import gauges_record, series_ingest
from metrics.services.journal import event_append

__all__ = ["alarm_look", "event_append", "gauges_record", "series_ingest"]
