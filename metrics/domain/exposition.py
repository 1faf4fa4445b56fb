"""Figures as Prometheus wants them: families of samples, and its text format. Histograms have fixed buckets, fine where decode steps are.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from metrics.domain.histogram import GAMMA, Histogram

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LE_S = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip


class Kind(StrEnum):
    """Prometheus' types that denv has."""

    COUNTER = "counter"  # only grows while what is counted is kept
    GAUGE = "gauge"  # as it is now
    HISTOGRAM = "histogram"  # seconds


@dataclass(slots=True)
class Family:
    """All samples of one name; the labels of each, and its value. `help` is what a reader is told of it."""

    name: str
    kind: Kind
    samples: list[tuple[Mapping[str, str], float | Histogram]] = field(default_factory=list)
    help: str = ""

    def add(self, value: float, **labels: str) -> None:
        """One sample more."""
        self.samples.append((labels, value))


def text_page(families: Iterable[Family]) -> bytes:
    """The whole page."""
    lines: list[str] = []
    for family in families:
        if family.help:
            lines.append(f"# HELP {family.name} {_one_line(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value in family.samples:
            lines += _lines(family.name, _labels(labels), value)
    return ("\n".join(lines) + "\n").encode()


def cumulative(histogram: Histogram) -> list[int]:
    """Counts at or under each of LE_S."""
    return [
        histogram.zeros + sum(count for index, count in histogram.buckets.items() if GAMMA ** (index + 1) <= le * 1.0001) for le in LE_S
    ]


def _lines(name: str, labels: str, value: float | Histogram) -> Iterable[str]:
    if not isinstance(value, Histogram):
        yield f"{name}{{{labels}}} {value:.15g}" if labels else f"{name} {value:.15g}"
        return
    for le, count in zip(LE_S, cumulative(value), strict=True):
        yield f'{name}_bucket{{{labels},le="{le:g}"}} {count}'
    yield f'{name}_bucket{{{labels},le="+Inf"}} {value.count}'
    yield f"{name}_sum{{{labels}}} {value.sum:.9g}"
    yield f"{name}_count{{{labels}}} {value.count}"


def _one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _labels(pairs: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
