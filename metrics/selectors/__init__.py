"""Reads of the metrics app."""

from __future__ import annotations

from metrics.selectors.journal import events_after, events_view, latest_seq

__all__ = ["events_after", "events_view", "latest_seq"]
