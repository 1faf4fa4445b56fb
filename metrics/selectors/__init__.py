"""Reads of the metrics app."""

from __future__ import annotations

from metrics.models import WINDOW_S
from metrics.selectors.chain import chain_view
from metrics.selectors.channels import channels_view
from metrics.selectors.figures import alarm_figures, alarm_figures_by_stage, metrics_view, with_baselines
from metrics.selectors.frames import frame_view, frames_view
from metrics.selectors.glances import glances_view
from metrics.selectors.journal import events_after, events_view, latest_seq
from metrics.selectors.loops import BacklogView, LoopView, backlogs_view, loops_view
from metrics.selectors.steady import breaches_view
from metrics.selectors.traffic import TrafficView, traffic_view

__all__ = [
    "WINDOW_S",
    "BacklogView",
    "LoopView",
    "TrafficView",
    "alarm_figures",
    "alarm_figures_by_stage",
    "backlogs_view",
    "breaches_view",
    "chain_view",
    "channels_view",
    "events_after",
    "events_view",
    "frame_view",
    "frames_view",
    "glances_view",
    "latest_seq",
    "loops_view",
    "metrics_view",
    "traffic_view",
    "with_baselines",
]
