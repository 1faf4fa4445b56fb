"""The range of time that all charts of a page share, as its address says it: `range=1h` moves with the clock, `from=..&to=..` stands still.

Whoever opens an address that stands still sees the same picture. Every other range that can be reached from one is a plain link, so
that all of it works from the keyboard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from denvweb.core.units import format_duration

_LONGEST = timedelta(hours=24)
_SHORTEST = timedelta(minutes=1)
_KEPT = timedelta(days=30)
_FINE_KEPT = timedelta(hours=12)  # what is older is certain to be there only in steps of 5 minutes
_ROLLED_S = 300.0
# From 300 on it is the 5-minute rows that are read: finer steps of six hours would merge a few thousand rows of each unit.
_STEPS_S = (10.0, 30.0, 60.0, 300.0, 600.0)
_POINTS = 150  # a chart is not drawn finer
_SETTLE = timedelta(seconds=2)  # as the frames have it: a step's last report comes after it


@dataclass(frozen=True, slots=True)
class Preset:
    """A range up to now."""

    key: str
    text: str
    span: timedelta
    step_s: float
    every_ms: int  # how often the page asks again


PRESETS = (
    Preset("15m", "15 min", timedelta(minutes=15), 10, 2000),
    Preset("1h", "1 h", timedelta(hours=1), 30, 2000),
    Preset("6h", "6 h", timedelta(hours=6), 300, 15_000),
    Preset("24h", "24 h", timedelta(hours=24), 600, 60_000),
)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From `since` to `until`; one that moves with the clock is a preset."""

    since: datetime
    until: datetime
    step_s: float
    preset: Preset | None = None

    @property
    def query(self) -> str:
        """What it is in an address."""
        return f"range={self.preset.key}" if self.preset else pin(self.since, self.until)

    @property
    def every_ms(self) -> int:
        """How often a page asks again; 0: never, for nothing changes in it."""
        return self.preset.every_ms if self.preset else 0

    @property
    def text(self) -> str:
        """In words; empty for a preset, whose button says it."""
        if self.preset:
            return ""
        begin, end = self.since.astimezone(UTC), self.until.astimezone(UTC)
        last = f"{end:%H:%M:%S}" if begin.date() == end.date() else f"{end:%-d %b %H:%M:%S}"
        return f"{begin:%-d %b %H:%M:%S} to {last} UTC ({format_duration((end - begin).total_seconds())}), standing still"

    @property
    def end(self) -> datetime:
        """The `now` that frames of it are asked with."""
        return self.until if self.preset else _ceil(self.until, self.step_s) + _SETTLE

    @property
    def span_s(self) -> float:
        """The seconds before `end` that frames of it are asked for."""
        begin = self.since if self.preset else datetime.fromtimestamp(self.since.timestamp() // self.step_s * self.step_s, UTC)
        return ((self.until if self.preset else _ceil(self.until, self.step_s)) - begin).total_seconds()


def of(asked: Mapping[str, str], now: datetime) -> TimeRange:
    """The range that an address asks for; the last 15 minutes when it asks for none, or for none that there is."""
    since, until = _instant(asked.get("from", "")), _instant(asked.get("to", ""))
    if since is not None and until is not None and since < until and now - _KEPT < until and since < now:
        return fixed(since, until, now)
    key = asked.get("range", "")
    chosen = next((preset for preset in PRESETS if key in (preset.key, f"{preset.span.total_seconds() / 60:.0f}")), PRESETS[0])
    return TimeRange(now - chosen.span, now, chosen.step_s, chosen)


def fixed(since: datetime, until: datetime, now: datetime) -> TimeRange:
    """One that stands still: not before what is kept, not after now, from a minute to a day long."""
    until = min(until, now)
    old = since < now - _FINE_KEPT
    shortest = timedelta(seconds=3 * _ROLLED_S) if old else _SHORTEST
    missing = max(timedelta(), shortest - (until - since))
    since, until = since - missing / 2, min(until + missing / 2, now)
    since = max(min(since, until - shortest), until - _LONGEST, now - _KEPT)
    span_s = (until - since).total_seconds()
    steps_s = [step_s for step_s in _STEPS_S if not old or step_s >= _ROLLED_S]
    return TimeRange(since, until, next((step_s for step_s in steps_s if span_s / step_s <= _POINTS), _STEPS_S[-1]))


def pin(since: datetime, until: datetime) -> str:
    """The address of a range that stands still."""
    return urlencode({"from": _text(since), "to": _text(until)}, safe=":")


def links(seen: TimeRange, now: datetime) -> dict[str, str]:
    """Where one can go from here, by the link's name; the same range again where there is nothing further."""
    span = seen.until - seen.since
    ways = {
        "earlier": (seen.since - span / 2, seen.until - span / 2),
        "later": (min(seen.until + span / 2, now) - span, min(seen.until + span / 2, now)),
        "closer": (seen.since + span / 4, seen.until - span / 4),
        "wider": (min(seen.until + span / 2, now) - min(2 * span, _LONGEST), min(seen.until + span / 2, now)),
    }
    found = {name: fixed(since, until, now) for name, (since, until) in ways.items()}
    still = pin(seen.since, seen.until)
    return {name: seen.query if pin(way.since, way.until) == still else way.query for name, way in found.items()}


def _instant(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.replace(tzinfo=found.tzinfo or UTC)


def _text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ceil(at: datetime, step_s: float) -> datetime:
    return datetime.fromtimestamp(-(-at.timestamp() // step_s) * step_s, UTC)
