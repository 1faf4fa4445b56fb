"""Reading windows: which rows cover a span, each second of it once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

from django.db import connection
from django.db.models import Max, Q, QuerySet
from django.db.models.expressions import RawSQL

from denvweb.core import wire
from metrics.domain.alarm import NOTHING
from metrics.domain.types import AlarmCount
from metrics.domain.verdict import AlarmAsk, Arms
from metrics.domain.window import Figures
from metrics.models import ROLLED_S, WINDOW_S, GaugeWindow, IngestedReport, Window

_FRESH = timedelta(seconds=10)
_INSTANTS = "SELECT generate_series(%s::timestamptz, %s::timestamptz, make_interval(secs => %s))"
_SAMPLES = 6  # of a gauge in a step, at least, where there are as many
_FINE_KEPT = timedelta(hours=12)  # well inside the day that the fine rows are kept for


def floor_to(at: datetime, seconds: int) -> datetime:
    """The start of the window of that length that holds `at`; windows are aligned to the epoch."""
    return datetime.fromtimestamp(int(at.timestamp()) // seconds * seconds, UTC)


def ceil_to(at: datetime, seconds: int) -> datetime:
    """The start of the first window of that length that begins at `at` or later."""
    floor = floor_to(at, seconds)
    return floor if floor == at else floor + timedelta(seconds=seconds)


def fine_windows(*, stage: str, begin: datetime, end: datetime) -> QuerySet[Window]:
    """The 10-second rows of users' requests; denv's own probes are left out."""
    return fine_windows_of(stages=[stage], begin=begin, end=end)


def fine_windows_of(*, stages: Collection[str], begin: datetime, end: datetime) -> QuerySet[Window]:
    """The same rows of several stages."""
    return Window.objects.filter(stage__in=stages, seconds=WINDOW_S, probe=False, start_at__gte=begin, start_at__lt=end)


def users_windows(*, stage: str, begin: datetime, end: datetime) -> QuerySet[Window]:
    """The rows of users' requests from `begin` (the start of a window) to `end`, denv's own probes left out.

    5-minute rows as far as they are whole within the span and made, 10-second rows for the rest.
    """
    rows = Window.objects.filter(stage=stage, probe=False, start_at__lt=end)
    rolled_from = ceil_to(begin, ROLLED_S)
    if rolled_from + timedelta(seconds=ROLLED_S) > end:  # no 5-minute row is whole within the span
        return rows.filter(seconds=WINDOW_S, start_at__gte=begin)
    newest = rows.filter(seconds=ROLLED_S, start_at__gte=rolled_from).aggregate(at=Max("start_at"))["at"]
    if newest is None:
        return rows.filter(seconds=WINDOW_S, start_at__gte=begin)
    rolled_to = newest + timedelta(seconds=ROLLED_S)
    return rows.filter(
        Q(seconds=WINDOW_S, start_at__gte=begin, start_at__lt=rolled_from)
        | Q(seconds=ROLLED_S, start_at__gte=rolled_from, start_at__lt=rolled_to)
        | Q(seconds=WINDOW_S, start_at__gte=rolled_to)
    )


def sample_s(step: int) -> int:
    """Seconds between the rows that a step's mean is taken of: six of it or more, among them those that pruning leaves (every 300 s)."""
    fits = (apart for apart in range(2 * WINDOW_S, ROLLED_S + 1, WINDOW_S) if ROLLED_S % apart == 0 and apart * _SAMPLES <= step)
    return max(fits, default=WINDOW_S)


def gauge_windows(*, stage: str, begin: datetime, end: datetime, apart_s: int = WINDOW_S) -> QuerySet[GaugeWindow]:
    """The gauges of a stage's units, or of so many seconds only one row of each."""
    rows = GaugeWindow.objects.filter(stage=stage, start_at__gte=begin, start_at__lt=end)
    if apart_s <= WINDOW_S:
        return rows
    return rows.filter(start_at__in=RawSQL(_INSTANTS, [ceil_to(begin, apart_s), end, apart_s]))  # the index is asked for each


_ARMS = """
WITH asked AS (
    SELECT * FROM unnest(%(stage)s::text[], %(begin)s::timestamptz[], %(rolled)s::timestamptz[], %(canary)s::text[], %(baseline)s::text[],
        %(probed)s::bool[]) WITH ORDINALITY AS ask (stage, begin_at, rolled_from, canary, baseline, probed, place)
), bounded AS (
    SELECT asked.*, (
        SELECT max(kept.start_at) + make_interval(secs => %(rolled_s)s) FROM metrics_window kept
        WHERE kept.stage = asked.stage AND kept.seconds = %(rolled_s)s AND NOT kept.probe
            AND kept.start_at >= asked.rolled_from AND kept.start_at < %(now)s
    ) AS rolled_to FROM asked
)
SELECT bounded.place, bounded.canary IN (row.prefill_release, row.decode_release), row.probe, row.alarms::text
FROM bounded JOIN metrics_window row ON row.stage = bounded.stage AND (bounded.probed OR NOT row.probe)
    AND row.start_at >= bounded.begin_at AND row.start_at < %(now)s
WHERE (row.decode_release IN (bounded.canary, bounded.baseline) OR row.prefill_release IN (bounded.canary, bounded.baseline))
    AND row.seconds = CASE WHEN row.start_at >= bounded.rolled_from AND row.start_at < bounded.rolled_to
        THEN %(rolled_s)s ELSE %(window_s)s END
"""  # 5-minute rows as far as they are whole within the span and made, 10-second rows for the rest, as in `users_windows`


def alarm_arms(asks: Sequence[AlarmAsk], now: datetime) -> list[dict[str, Arms]]:
    """Exact counts by alarm, of each ask since the window that holds its `since`: one query for all of them.

    Whatever the canary had a part in is the canary's.
    """
    begins = [floor_to(ask.since, WINDOW_S if now - ask.since < _FINE_KEPT else ROLLED_S) for ask in asks]
    sums = [_Sums() for _ in asks]
    with connection.cursor() as cursor:
        cursor.execute(
            _ARMS,
            {
                "stage": [ask.stage for ask in asks],
                "begin": begins,
                "rolled": [ceil_to(begin, ROLLED_S) for begin in begins],
                "canary": [ask.canary_release for ask in asks],
                "baseline": [ask.baseline_release or ask.canary_release for ask in asks],
                "probed": [any(spec.synthetic for spec in ask.counted) for ask in asks],
                "rolled_s": ROLLED_S,
                "window_s": WINDOW_S,
                "now": now,
            },
        )
        for place, is_canary, probe, alarms in cursor.fetchall():
            sums[place - 1].of(is_canary, probe).add_alarms(wire.decode(alarms, dict[str, AlarmCount]))
    return [_arms(ask, counted) for ask, counted in zip(asks, sums, strict=True)]


class _Sums:
    """Both arms, of users' requests and of those that denv made."""

    def __init__(self) -> None:
        self._sums = {(is_canary, probe): Figures() for is_canary in (True, False) for probe in (True, False)}

    def of(self, is_canary: bool, probe: bool) -> Figures:
        return self._sums[is_canary, probe]


def _arms(ask: AlarmAsk, sums: _Sums) -> dict[str, Arms]:
    found = {}
    for spec in ask.counted:
        canary = sums.of(True, spec.synthetic).alarms.get(spec.key, NOTHING)
        baseline = sums.of(False, spec.synthetic).alarms.get(spec.key, NOTHING) if ask.baseline_release else None
        found[spec.name] = Arms(canary, baseline)
    return found


def stages_fresh(stages: Collection[str], now: datetime) -> set[str]:
    """Those of the stages from which a router has reported in the last 10 seconds, by the server's clock."""
    rows = IngestedReport.objects.filter(stage__in=stages, received_at__gt=now - _FRESH)
    return set(rows.values_list("stage", flat=True).distinct())
