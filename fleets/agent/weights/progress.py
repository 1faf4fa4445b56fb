"""How far weights are, in words and with the time that is left. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from denvweb.core.units import format_bytes, format_duration

_SMOOTH_S = 30.0  # the rate is that of about so long
_TELL_AFTER_S = 3.0  # before, a rate says nothing


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes of one fetch. Times are monotonic seconds."""

    verb: str = "weights"  # or `checking weights`
    done_bytes: int = 0
    total_bytes: int = 0  # 0: not known yet
    rate: float = 0.0  # bytes per second, smoothed
    begun_s: float = 0.0
    moved_s: float = 0.0  # when a byte last came


def moved(progress: Progress, done_bytes: int, total_bytes: int, now_s: float) -> Progress:
    """The next state: `done_bytes` are there by now."""
    if progress.total_bytes != total_bytes:
        return replace(progress, done_bytes=done_bytes, total_bytes=total_bytes, rate=0.0, begun_s=now_s, moved_s=now_s)
    gained, passed_s = done_bytes - progress.done_bytes, now_s - progress.moved_s
    if gained <= 0 or passed_s <= 0:
        return progress
    share = min(1.0, passed_s / min(_SMOOTH_S, max(passed_s, now_s - progress.begun_s)))
    rate = progress.rate + share * (gained / passed_s - progress.rate)
    return replace(progress, done_bytes=done_bytes, rate=rate, moved_s=now_s)


def sentence(progress: Progress, now_s: float) -> str:
    """`weights 43% (12 GB of 28 GB), about 3 min`."""
    if not progress.total_bytes:
        return f"{progress.verb}: asking how much there is"
    done, total = progress.done_bytes, progress.total_bytes
    said = f"{progress.verb} {100 * done // total}% ({format_bytes(done)} of {format_bytes(total)})"
    silent_s = now_s - progress.moved_s
    if silent_s > _SMOOTH_S:
        return f"{said}, nothing came for {format_duration(silent_s)}"
    if progress.rate > 0 and now_s - progress.begun_s >= _TELL_AFTER_S and done < total:
        return f"{said}, about {_about((total - done) / progress.rate)}"
    return said


def _about(seconds: float) -> str:
    if seconds < 60:
        return "a minute"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
