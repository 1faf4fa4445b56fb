"""Celery tasks of the fleets app: they take nothing, and may run twice, late, or not at all."""

from __future__ import annotations

from celery import shared_task

from fleets.reconcile import reconcile
from metrics.services import loop_pass


@shared_task(name="fleets.reconcile")
def reconcile_task() -> None:
    """One pass over all fleets and units."""
    with loop_pass("fleets.reconcile"):
        reconcile()
