"""The router's figures as families of samples, under denv's names, before they are written in one format or the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fleets.router.policy import Stage
from fleets.router.telemetry import Series
from metrics.domain.histogram import Histogram
from metrics.domain.types import Metric

_PLAIN = {
    "requests": "requests",
    "errors": "errors",
    "cancelled": "cancelled",
    "kv.failed": "kv_failed",
    "kv.recomputed": "kv_recomputed",
    "goodput.met": "goodput_met",
    "goodput.of": "goodput_of",
}
_FAMILIES = {"errors": ("errors_by_class", "class"), "reason": ("decisions", "reason"), "tokens": ("tokens", "kind")}


class Kind(StrEnum):
    """Prometheus' types that the router has."""

    COUNTER = "counter"  # only grows while the process lives
    GAUGE = "gauge"  # as it is now
    HISTOGRAM = "histogram"  # seconds


_ORDER = (Kind.COUNTER, Kind.HISTOGRAM, Kind.GAUGE)


@dataclass(slots=True)
class Family:
    """All samples of one name; the labels of each, and its value."""

    name: str
    kind: Kind
    samples: list[tuple[Mapping[str, str], float | Histogram]] = field(default_factory=list)


def families(series: Iterable[Series], stage: Stage, extra: Mapping[str, float]) -> list[Family]:
    """Counters, histograms, then gauges, each by name. `extra` are gauges of the process, by the end of their name."""
    made: dict[str, Family] = {}

    def put(name: str, kind: Kind, labels: Mapping[str, str], value: float | Histogram) -> None:
        made.setdefault(name, Family(name, kind)).samples.append((labels, value))

    for item in series:
        key = item.key
        own = {
            "stage": key.stage, "unit": key.unit, "prefill_release": key.prefill_release, "decode_release": key.decode_release,
            "route": key.route.value, "probe": str(key.probe).lower(),
        }  # fmt: skip
        for name, value in item.total_counters.items():
            family, label = _counter(name)
            put(f"denv_router_{family}_total", Kind.COUNTER, {**own, **label}, value)
        for metric, histogram in item.total_histograms.items():
            put(f"denv_router_{Metric(metric).value.replace('-', '_')}_seconds", Kind.HISTOGRAM, own, histogram)
    for name, labels, number in _gauges(stage, extra):
        put(f"denv_router_{name}", Kind.GAUGE, labels, number)
    return sorted(made.values(), key=lambda family: (_ORDER.index(family.kind), family.name))


def _counter(name: str) -> tuple[str, dict[str, str]]:
    """The metric's name, and the label that the rest of the counter's name becomes."""
    if name in _PLAIN:
        return _PLAIN[name], {}
    head, _, tail = name.partition(".")
    if tail and head in _FAMILIES:
        family, label = _FAMILIES[head]
        return family, {label: tail}
    return "events", {"event": name}


def _gauges(stage: Stage, extra: Mapping[str, float]) -> Iterable[tuple[str, Mapping[str, str], float]]:
    for unit in stage.units.values():
        gauge, labels = unit.gauge(), {"unit": unit.spec.unit}
        yield "prefill_queue", labels, gauge.prefill_queue
        yield "prefill_inflight", labels, gauge.prefill_inflight
        yield "decode_inflight", labels, gauge.decode_inflight
        yield "replicas_ejected", labels, len(gauge.ejected)
    for release, count in stage.inflight.items():
        yield "inflight", {"release": release}, count
    for name, number in extra.items():
        yield name, {}, number
