"""Freeze windows: times in which nothing goes forward, as people set them in their own time zone. Pure; a rollback never asks.

A recurring window begins on its days at a local time and ends at the next such local time after it, at most a day later. Where
the clocks skip a time, the moment of the skip stands for it; an hour that comes twice belongs to the window both times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MOST_IN_A_ROW = 800  # windows one after the other without a gap: more than a year of days, each with two


@dataclass(frozen=True, slots=True)
class FreezeWindow:
    """One window: recurring with `days`, `start` and `end`, or once with `begins_at` and `ends_at`. Empty `model` or `stage`: all."""

    id: str
    reason: str
    zone: str  # an IANA name, such as `Europe/Berlin`
    model: str = ""
    stage: str = ""  # its name within the model: `prod-us`
    days: tuple[str, ...] = ()  # of DAYS, on which it begins
    start: time | None = None
    end: time | None = None  # on the next day unless it is after `start`
    begins_at: datetime | None = None
    ends_at: datetime | None = None

    def covers(self, model: str, stage: str) -> bool:
        """Whether it is about this stage."""
        return self.model in ("", model) and self.stage in ("", stage)


@dataclass(frozen=True, slots=True)
class Frozen:
    """A stage that nothing goes forward in now. `until` is None when no end is in sight: windows follow each other without a gap."""

    window: str  # the id of the one that is on; of several the one that ends last
    reason: str
    zone: str
    until: datetime | None

    @property
    def sentence(self) -> str:
        """`frozen until 2 Jan 2027 08:00 (Europe/Berlin): holidays`."""
        if self.until is None:
            return f"frozen, with no end in sight: {self.reason}"
        return f"frozen until {clock(self.until, self.zone)}: {self.reason}"


def clock(at: datetime, zone: str) -> str:
    """`2 Jan 2027 08:00 (Europe/Berlin)`."""
    local = at.astimezone(ZoneInfo(zone))
    return f"{local.day} {local:%b %Y %H:%M} ({zone})"


def frozen(windows: Iterable[FreezeWindow], *, model: str, stage: str, now: datetime) -> Frozen | None:
    """Whether a stage is frozen, and until when: windows that touch or overlap count as one."""
    ours = [window for window in windows if window.covers(model, stage)]
    first = _last_of(ours, now)
    if first is None:
        return None
    until, window = first
    for _ in range(_MOST_IN_A_ROW):
        following = _last_of(ours, until)
        if following is None:
            return Frozen(window.id, window.reason, window.zone, until)
        until = following[0]
    return Frozen(window.id, window.reason, window.zone, None)


def _last_of(windows: Iterable[FreezeWindow], at: datetime) -> tuple[datetime, FreezeWindow] | None:
    """Of the windows that are on at a moment the one that ends last, and when."""
    on = [(end, window) for window in windows if (end := _ends(window, at)) is not None]
    return max(on, key=lambda pair: (pair[0], pair[1].id), default=None)


def next_begin(window: FreezeWindow, now: datetime) -> datetime | None:
    """When it begins the next time; None when it never does again."""
    if window.begins_at is not None:
        return window.begins_at if window.begins_at > now else None
    today = now.astimezone(ZoneInfo(window.zone)).date()
    begins = (_span(window, today + timedelta(days=ahead)) for ahead in range(9))
    return next((span[0] for span in begins if span is not None and span[0] > now), None)


def _ends(window: FreezeWindow, at: datetime) -> datetime | None:
    """When the window that is on at this moment ends; None when it is not on."""
    if window.begins_at is not None and window.ends_at is not None:
        return window.ends_at if window.begins_at <= at < window.ends_at else None
    today = at.astimezone(ZoneInfo(window.zone)).date()
    spans = (_span(window, today - timedelta(days=back)) for back in (1, 0))
    return max((end for begin, end in filter(None, spans) if begin <= at < end), default=None)


def _span(window: FreezeWindow, day: date) -> tuple[datetime, datetime] | None:
    """From when to when it is on if it begins on that day."""
    if window.start is None or window.end is None or DAYS[day.weekday()] not in window.days:
        return None
    last = day if window.end > window.start else day + timedelta(days=1)
    zone = ZoneInfo(window.zone)
    return _instant(datetime.combine(day, window.start), zone, last=False), _instant(datetime.combine(last, window.end), zone, last=True)


def _instant(local: datetime, zone: ZoneInfo, *, last: bool) -> datetime:
    """The moment of a local time: of one that comes twice the first or the last, of one that is skipped the moment of the skip."""
    first, second = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first <= second:
        return second if last else first
    low, high = second, first  # the clocks skip between these two (PEP 495)
    before = low.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == before else (low, middle)
    return high.replace(microsecond=0)


def freeze_sentence(window: FreezeWindow) -> str:
    """`every stage, mon-fri 18:00-08:00 (Europe/Berlin)`."""
    where = f"{window.model}/{window.stage}" if window.stage else f"every stage of {window.model}" if window.model else "every stage"
    if window.begins_at and window.ends_at:
        return f"{where}, {clock(window.begins_at, window.zone)} to {clock(window.ends_at, window.zone)}"
    return f"{where}, {_days(window.days)} {window.start:%H:%M}-{window.end:%H:%M} ({window.zone})"


def _days(days: Sequence[str]) -> str:
    """`mon-fri`, `sat, sun`, `every day`."""
    at = [DAYS.index(day) for day in days]
    if len(at) == len(DAYS):
        return "every day"
    row = len(at) > 2 and at == list(range(at[0], at[0] + len(at)))
    return f"{days[0]}-{days[-1]}" if row else ", ".join(days)
