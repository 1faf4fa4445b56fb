"""The router's figures as families of samples, under denv's names, before they are written in one format or the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fleets.router.policy import Stage
from fleets.router.telemetry import Series
from metrics.domain.exposition import Family, Kind
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
_ORDER = (Kind.COUNTER, Kind.HISTOGRAM, Kind.GAUGE)
PREFIX = "denv_router_"
# What a reader is told of each family, its prefix, `_total` and `_seconds` left out. A figure that is not here is not exposed.
HELP: Mapping[str, str] = {
    "requests": "Requests that ended, well or not.",
    "errors": "Requests that failed for a reason of the service, not of the client.",
    "errors_by_class": "The same by class of the error.",
    "cancelled": "Requests that their client gave up.",
    "decisions": "Requests by why they were prefilled where they were.",
    "tokens": "Tokens: in, out, and of the prompts cached, uncached, or computed by a prefill replica.",
    "events": "Whatever else is counted, such as retries by why.",
    "kv_failed": "KV transfers that failed; decode computed the prompt anew.",
    "kv_recomputed": "Requests whose KV decode computed anew although prefill had sent it.",
    "goodput_met": "Requests within all of the stage's limits.",
    "goodput_of": "Requests that were judged by the stage's limits.",
    "ttft": "Request read to first token sent: the sum of queue, prefill, kv_transfer and first_step.",
    "queue": "Waiting in the router for a prefill place.",
    "prefill": "Prefill leg sent to its answer.",
    "kv_transfer": "Decode leg sent to its response head, KV on board.",
    "first_step": "Response head to first token.",
    "itl": "Gap between two tokens of one request.",
    "e2e": "Request read to last byte sent.",
    "prefill_queue": "Requests that wait in this router for a prefill place of the unit.",
    "prefill_inflight": "Requests that this router has at the unit's prefill replicas.",
    "decode_inflight": "Requests that this router has at the unit's decode replicas.",
    "kv_use_ratio": "KV cache in use on the unit's fullest decode replica, 0 to 1; absent while no engine tells.",
    "replicas_ejected": "Replicas of the unit that this router has taken out.",
    "inflight": "Requests in flight by release.",
    "weight_ratio": "Share of the traffic that the router's table gives to a release, 0 to 1.",
    "table_generation": "Generation of the table in force.",
    "reports_waiting": "Reports that the control plane has not taken yet.",
    "prefix_blocks": "Blocks in the index of prompts.",
    "kv_event_batches": "Batches of KV events heard from engines.",
    "kv_events_lost": "Batches of KV events that could not be had again.",
    "client_connections": "Open connections of clients.",
    "access_log_lines_lost": "Lines of the access log let go because the disk was full.",
    "refused": "Requests turned away before the stage: without a good key, or over a client's limits.",
    "unforeseen_failures": "Failures that nobody foresaw; the log has each.",
    "tokenizer_loaded": "1 when prompts are counted with the model's own tokenizer.",
    "tokenizer_failures": "Times that it could not be loaded.",
    "prompts_estimated": "Prompts whose tokens were estimated although a tokenizer is named.",
}
_GROW = frozenset({
    "kv_event_batches", "kv_events_lost", "access_log_lines_lost", "unforeseen_failures", "tokenizer_failures", "prompts_estimated",
})  # fmt: skip


def families(series: Iterable[Series], stage: Stage, extra: Mapping[str, float], refused: Mapping[str, int] | None = None) -> list[Family]:
    """Counters, histograms, then gauges, each by name. `extra` are figures of the process, by the end of their name."""
    made: dict[str, Family] = {}

    def put(name: str, kind: Kind, labels: Mapping[str, str], value: float | Histogram) -> None:
        full = f"{PREFIX}{name}{_ENDS[kind]}"
        made.setdefault(full, Family(full, kind, help=HELP[name])).samples.append((labels, value))

    for item in series:
        key = item.key
        own = {
            "stage": key.stage, "unit": key.unit, "prefill_release": key.prefill_release, "decode_release": key.decode_release,
            "route": key.route.value, "probe": str(key.probe).lower(),
        }  # fmt: skip
        for name, value in item.total_counters.items():
            family, label = _counter(name)
            put(family, Kind.COUNTER, {**own, **label}, value)
        for metric, histogram in item.total_histograms.items():
            put(Metric(metric).value.replace("-", "_"), Kind.HISTOGRAM, own, histogram)
    for name, labels, number in _gauges(stage):
        put(name, Kind.GAUGE, labels, number)
    for name, number in extra.items():
        put(name, Kind.COUNTER if name in _GROW else Kind.GAUGE, {}, number)
    for why, count in (refused or {}).items():
        put("refused", Kind.COUNTER, {"reason": why}, count)
    return sorted(made.values(), key=lambda family: (_ORDER.index(family.kind), family.name))


_ENDS = {Kind.COUNTER: "_total", Kind.HISTOGRAM: "_seconds", Kind.GAUGE: ""}


def _counter(name: str) -> tuple[str, dict[str, str]]:
    """The metric's name, and the label that the rest of the counter's name becomes."""
    if name in _PLAIN:
        return _PLAIN[name], {}
    head, _, tail = name.partition(".")
    if tail and head in _FAMILIES:
        family, label = _FAMILIES[head]
        return family, {label: tail}
    return "events", {"event": name}


def _gauges(stage: Stage) -> Iterable[tuple[str, Mapping[str, str], float]]:
    named = {"stage": stage.table.stage} if stage.table is not None else {}
    for unit in stage.units.values():
        gauge, labels = unit.gauge(), {**named, "unit": unit.spec.unit, "release": unit.spec.release}
        yield "prefill_queue", labels, gauge.prefill_queue
        yield "prefill_inflight", labels, gauge.prefill_inflight
        yield "decode_inflight", labels, gauge.decode_inflight
        yield "replicas_ejected", labels, len(gauge.ejected)
        if gauge.kv_use is not None:
            yield "kv_use_ratio", labels, gauge.kv_use
    for release, count in stage.inflight.items():
        yield "inflight", {**named, "release": release}, count
    for release, weight in stage.weights.items():
        yield "weight_ratio", {**named, "release": release}, weight / 10_000
