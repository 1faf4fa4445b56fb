"""The periodic tasks say that they came to their end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db.models import F
from django.utils import timezone

from metrics.models import LoopPass


@dataclass(slots=True)
class Pass:
    """One pass of a task, as it goes."""

    failures: int = 0


@contextmanager
def loop_pass(loop: str) -> Iterator[Pass]:
    """Notes the end of a pass; one that raises leaves no note, so the age of the last good one grows."""
    began_s, seen = time.monotonic(), Pass()
    yield seen
    now, took_s = timezone.now(), time.monotonic() - began_s
    row = LoopPass.objects.filter(pk=loop)
    if not row.update(ended_at=now, took_s=took_s, passes=F("passes") + 1, failures=F("failures") + seen.failures):
        first = LoopPass(loop=loop, ended_at=now, took_s=took_s, passes=1, failures=seen.failures)
        LoopPass.objects.bulk_create([first], ignore_conflicts=True)
