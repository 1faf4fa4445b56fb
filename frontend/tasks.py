"""Celery tasks of the frontend: notices."""

from __future__ import annotations

from celery import shared_task

from frontend.delivery import deliver_soon


@shared_task(name="frontend.deliver")
def deliver() -> None:
    """Send notices, in a thread beside the worker's: they may wait for others for long, and rollouts may not wait for them."""
    deliver_soon()
