"""What engines count by themselves: KV moved, lost and expired, requests set back. They count up while they live, from 0.

A unit's counts are the sums over its engines, kept beside a number that stands for which engines they are. What was counted between two
rows is their difference where both are of the same engines: an engine that starts anew, comes, goes or falls silent is then never
taken for a rise or a fall. What it did in just those seconds is not counted.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

COUNTS = (
    "preemptions",  # requests whose KV was taken from them and computed again
    "kv_transfers",
    "kv_transfer_bytes",
    "kv_transfers_failed",
    "kv_expired",  # prompts whose KV prefill let go, because nobody had fetched it by the end of its lease
    "kv_fetched_late",
)
OF = "counted_by"  # the gauge that stands for the engines
_TOTAL = "_total"
KEPT = frozenset({OF, *(name + _TOTAL for name in COUNTS)})

Rows = Iterable[tuple[int, Mapping[str, float]]]  # when, in seconds; a unit's gauges then


def totals(engines: Sequence[tuple[str, Mapping[str, float]]]) -> dict[str, float]:
    """The gauges to be kept of a unit's engines: each one's id, and what it says. Those that say nothing are left out."""
    said = sorted((engine, gauges) for engine, gauges in engines if gauges)
    kept = {name + _TOTAL: sum(gauges.get(name, 0.0) for _, gauges in said) for name in COUNTS if any(name in gauges for _, gauges in said)}
    return {**kept, OF: float(zlib.crc32(" ".join(engine for engine, _ in said).encode()))} if kept else {}


def rises(rows: Rows, names: Iterable[str] = COUNTS) -> list[tuple[int, dict[str, float]]]:
    """What was counted up to each of a unit's rows since the one before, by name; rows that cannot be compared are left out."""
    kept = [(name, name + _TOTAL) for name in names]
    found: list[tuple[int, dict[str, float]]] = []
    before: Mapping[str, float] = {}
    for at_s, gauges in sorted(rows, key=itemgetter(0)):
        if OF in gauges and before.get(OF) == gauges[OF]:
            found.append((at_s, {name: max(0.0, gauges[key] - before.get(key, 0.0)) for name, key in kept if key in gauges}))
        before = gauges
    return found
