"""GET /metrics: the router's figures in Prometheus' text format, under denv's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fleets.router.policy import Stage
from fleets.router.telemetry import Series
from metrics.domain.histogram import GAMMA, Histogram
from metrics.domain.types import Metric

LE_S = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
_PLAIN = {"requests": "requests", "errors": "errors", "cancelled": "cancelled", "kv.failed": "kv_failed", "kv.recomputed": "kv_recomputed"}
_FAMILIES = {"errors": ("errors_by_class", "class"), "reason": ("decisions", "reason"), "tokens": ("tokens", "kind")}


def _labels(pairs: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _counter(name: str) -> tuple[str, dict[str, str]]:
    """The metric's name, and the label that the rest of the counter's name becomes."""
    if name in _PLAIN:
        return _PLAIN[name], {}
    head, _, tail = name.partition(".")
    if tail and head in _FAMILIES:
        family, label = _FAMILIES[head]
        return family, {label: tail}
    return "events", {"event": name}


def _cumulative(histogram: Histogram) -> list[int]:
    """Counts at or under each of LE_S."""
    return [
        histogram.zeros + sum(count for index, count in histogram.buckets.items() if GAMMA ** (index + 1) <= le * 1.0001) for le in LE_S
    ]


def _histogram_lines(name: str, labels: str, histogram: Histogram) -> Iterable[str]:
    for le, count in zip(LE_S, _cumulative(histogram), strict=True):
        yield f'{name}_bucket{{{labels},le="{le:g}"}} {count}'
    yield f'{name}_bucket{{{labels},le="+Inf"}} {histogram.count}'
    yield f"{name}_sum{{{labels}}} {histogram.sum:.9g}"
    yield f"{name}_count{{{labels}}} {histogram.count}"


def exposition(series: Iterable[Series], stage: Stage, extra: Mapping[str, float]) -> bytes:
    """The whole page. `extra` are gauges of the process, by the end of their name."""
    counters: dict[str, list[str]] = {}
    histograms: dict[str, list[str]] = {}
    for item in series:
        key = item.key
        own = {
            "stage": key.stage, "unit": key.unit, "prefill_release": key.prefill_release, "decode_release": key.decode_release,
            "route": key.route.value, "probe": str(key.probe).lower(),
        }  # fmt: skip
        for name, value in item.total_counters.items():
            family, label = _counter(name)
            full = f"denv_router_{family}_total"
            counters.setdefault(full, []).append(f"{full}{{{_labels({**own, **label})}}} {value}")
        for metric, histogram in item.total_histograms.items():
            full = f"denv_router_{Metric(metric).value.replace('-', '_')}_seconds"
            histograms.setdefault(full, []).extend(_histogram_lines(full, _labels(own), histogram))
    lines: list[str] = []
    for kind, families in (("counter", counters), ("histogram", histograms), ("gauge", _gauges(stage, extra))):
        for name, rows in sorted(families.items()):
            lines.append(f"# TYPE {name} {kind}")
            lines += rows
    return ("\n".join(lines) + "\n").encode()


def _gauges(stage: Stage, extra: Mapping[str, float]) -> dict[str, list[str]]:
    made: dict[str, list[str]] = {}
    for unit in stage.units.values():
        gauge = unit.gauge()
        for name, value in (
            ("prefill_queue", gauge.prefill_queue),
            ("prefill_inflight", gauge.prefill_inflight),
            ("decode_inflight", gauge.decode_inflight),
            ("replicas_ejected", len(gauge.ejected)),
        ):
            full = f"denv_router_{name}"
            made.setdefault(full, []).append(f'{full}{{unit="{gauge.unit}"}} {value}')
    for release, count in stage.inflight.items():
        made.setdefault("denv_router_inflight", []).append(f'denv_router_inflight{{release="{_escaped(release)}"}} {count}')
    for name, number in extra.items():
        made[f"denv_router_{name}"] = [f"denv_router_{name} {number:g}"]
    return made
