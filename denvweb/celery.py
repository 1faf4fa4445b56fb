"""Celery: it only says "look again". Tasks take ids, are idempotent, and everything they do is also done on beat."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "denvweb.settings")

app = Celery("denv")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,  # with the two below, a task of a killed worker comes back in seconds and not in minutes
    broker_transport_options={
        "visibility_timeout": 60,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "socket_timeout": 5,
        "socket_connect_timeout": 2,
        "retry_on_timeout": True,
    },
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
    task_publish_retry=False,  # a lost wake costs seconds, a publisher that waits for a dead broker costs a request
    beat_schedule={},
    timezone="UTC",
)
app.autodiscover_tasks(["releases", "fleets", "metrics", "frontend"])


def every(seconds: float, task: str) -> None:
    """Have beat send `task` every so many seconds; it expires before the next one, so a late worker finds no heap of them."""
    app.conf.beat_schedule[task] = {"task": task, "schedule": seconds, "options": {"expires": seconds}}


every(2.0, "releases.reconcile")
every(2.0, "fleets.reconcile")
every(5.0, "frontend.deliver")
every(5.0, "metrics.glance")
every(30.0, "metrics.roll_up")
