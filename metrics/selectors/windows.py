"""Reading windows: which rows cover a span, each second of it once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from django.db.models import Max, Q, QuerySet

from metrics.domain.alarm import NOTHING
from metrics.domain.types import AlarmSpec
from metrics.domain.verdict import Arms
from metrics.domain.window import Figures
from metrics.models import ROLLED_S, WINDOW_S, IngestedReport, Window

_FRESH = timedelta(seconds=10)
_FINE_KEPT = timedelta(hours=12)  # well inside the day that the fine rows are kept for


def floor_to(at: datetime, seconds: int) -> datetime:
    """The start of the window of that length that holds `at`; windows are aligned to the epoch."""
    return datetime.fromtimestamp(int(at.timestamp()) // seconds * seconds, UTC)


def _ceil_to(at: datetime, seconds: int) -> datetime:
    floor = floor_to(at, seconds)
    return floor if floor == at else floor + timedelta(seconds=seconds)


def fine_windows(*, stage: str, begin: datetime, end: datetime) -> QuerySet[Window]:
    """The 10-second rows of users' requests; denv's own probes are left out."""
    return Window.objects.filter(stage=stage, seconds=WINDOW_S, probe=False, start_at__gte=begin, start_at__lt=end)


def users_windows(*, stage: str, begin: datetime, end: datetime) -> QuerySet[Window]:
    """The rows of users' requests from `begin` (the start of a window) to `end`, denv's own probes left out.

    5-minute rows as far as they are whole within the span and made, 10-second rows for the rest.
    """
    rows = Window.objects.filter(stage=stage, probe=False, start_at__lt=end)
    rolled_from = _ceil_to(begin, ROLLED_S)
    newest = rows.filter(seconds=ROLLED_S, start_at__gte=rolled_from).aggregate(at=Max("start_at"))["at"]
    if newest is None:
        return rows.filter(seconds=WINDOW_S, start_at__gte=begin)
    rolled_to = newest + timedelta(seconds=ROLLED_S)
    return rows.filter(
        Q(seconds=WINDOW_S, start_at__gte=begin, start_at__lt=rolled_from)
        | Q(seconds=ROLLED_S, start_at__gte=rolled_from, start_at__lt=rolled_to)
        | Q(seconds=WINDOW_S, start_at__gte=rolled_to)
    )


def alarm_arms(
    *, stage: str, alarms: Sequence[AlarmSpec], canary_release: str, baseline_release: str | None, since: datetime, now: datetime
) -> dict[str, Arms]:
    """Exact counts by alarm since the window that holds `since`. Whatever the canary had a part in is the canary's."""
    begin = floor_to(since, WINDOW_S if now - since < _FINE_KEPT else ROLLED_S)
    ours = (canary_release, *([baseline_release] if baseline_release else []))
    rows = users_windows(stage=stage, begin=begin, end=now).filter(Q(decode_release__in=ours) | Q(prefill_release__in=ours))
    canary, baseline = Figures(), Figures()
    for prefill, decode, kept in rows.values_list("prefill_release", "decode_release", "alarms"):
        (canary if canary_release in (prefill, decode) else baseline).add_kept({}, kept, {})
    return {
        spec.name: Arms(canary.alarms.get(spec.key, NOTHING), baseline.alarms.get(spec.key, NOTHING) if baseline_release else None)
        for spec in alarms
    }


def figures_fresh(*, stage: str, now: datetime) -> bool:
    """Whether a router of the stage has reported in the last 10 seconds, by the server's clock."""
    return IngestedReport.objects.filter(stage=stage, received_at__gt=now - _FRESH).exists()
