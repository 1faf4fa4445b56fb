"""Celery tasks of the metrics app."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from metrics.services.glances import glances_write
from metrics.services.loops import loop_pass
from metrics.services.outbox import outbox_prune
from metrics.services.rollup import metrics_prune, windows_roll_up


@shared_task(name="metrics.roll_up")
def roll_up() -> None:
    """Roll figures up and drop old ones."""
    now = timezone.now()
    with loop_pass("metrics.roll_up"):
        windows_roll_up(now=now)
        metrics_prune(now=now)
        outbox_prune(now=now)


@shared_task(name="metrics.glance")
def glance() -> None:
    """Keep the overview's figures up."""
    with loop_pass("metrics.glance"):
        glances_write(now=timezone.now())
