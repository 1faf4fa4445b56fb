"""Quantities as people write them: `1500ms`, `10m`, `1%`, `256GiB`; and back again."""

from __future__ import annotations

import re

_DURATION_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z%]+)\s*")


def _split(text: str) -> tuple[float, str] | None:
    match = _QUANTITY.fullmatch(text)
    return (float(match[1]), match[2]) if match else None


def parse_duration_s(text: str) -> float | None:
    """Seconds of `1500ms`, `10m`, `1h30m`; None when it is no duration."""
    total_s, rest = 0.0, text.strip()
    if not rest:
        return None
    while rest:
        match = re.match(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|m|h|d)(?![A-Za-z])\s*|(\d+(?:\.\d+)?)(h|m)(?=\d)", rest)
        if match is None:
            return None
        number, unit = (match[1], match[2]) if match[1] else (match[3], match[4])
        total_s += float(number) * _DURATION_S[unit]
        rest = rest[match.end() :]
    return total_s


def parse_ratio(text: str) -> float | None:
    """0.1 of `10%`; None when it is no percentage."""
    parts = _split(text)
    return parts[0] / 100 if parts and parts[1] == "%" else None


def parse_bytes(text: str) -> int | None:
    """Bytes of `256GiB`; None when it is no size."""
    parts = _split(text)
    return int(parts[0] * _SIZE_BYTES[parts[1]]) if parts and parts[1] in _SIZE_BYTES else None


def format_duration(seconds: float) -> str:
    """The shortest honest form: `45 ms`, `12 s`, `3:20 min`, `15 min`, `2:05 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if 600 <= whole < 3570:
        return f"{round(seconds / 60)} min"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def format_ms(seconds: float | None) -> str:
    """`1,120 ms`; `-` when unknown."""
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"


def format_ratio(ratio: float | None) -> str:
    """`0.19%`; `-` when unknown."""
    return "-" if ratio is None else f"{ratio * 100:.3g}%"


def format_bytes(count: float) -> str:
    """`109 MB`, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
