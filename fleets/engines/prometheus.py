"""Reads the few figures that denv wants out of a Prometheus text page; no labels kept, samples of one name added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def samples(text: str, wanted: Iterable[str]) -> dict[str, float]:
    """Sums over labels of each wanted metric name that the page holds."""
    names = set(wanted)
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        head, _, value = line.rpartition(" ")
        name = head.partition("{")[0]
        if name in names:
            try:
                sums[name] = sums.get(name, 0.0) + float(value)
            except ValueError:
                continue  # a line of another format: the rest of the page still counts
    return sums


def mapped(text: str, names: Mapping[str, str], ratios: Mapping[str, tuple[str, str]]) -> dict[str, float]:
    """denv's gauges: `names` maps ours to theirs, `ratios` ours to their numerator and denominator."""
    found = samples(text, [*names.values(), *(part for pair in ratios.values() for part in pair)])
    gauges = {ours: found[theirs] for ours, theirs in names.items() if theirs in found}
    for ours, (hits, queries) in ratios.items():
        if found.get(queries):
            gauges[ours] = found.get(hits, 0.0) / found[queries]
    return gauges
