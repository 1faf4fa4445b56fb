"""Writes of the metrics app."""

from __future__ import annotations

from metrics.services.alarms import alarm_keep, alarm_look, alarm_sweep
from metrics.services.channels import channel_create, channel_delete, channel_switch
from metrics.services.ingest import gauges_record, series_ingest
from metrics.services.journal import event_append, refusal_append
from metrics.services.loops import loop_pass
from metrics.services.outbox import Notice, outbox_claim, outbox_failed, outbox_prune, outbox_sent
from metrics.services.steady import Watch, steady_alarms_look

__all__ = [
    "Notice",
    "Watch",
    "alarm_keep",
    "alarm_look",
    "alarm_sweep",
    "channel_create",
    "channel_delete",
    "channel_switch",
    "event_append",
    "gauges_record",
    "loop_pass",
    "outbox_claim",
    "outbox_failed",
    "outbox_prune",
    "outbox_sent",
    "refusal_append",
    "series_ingest",
    "steady_alarms_look",
]
