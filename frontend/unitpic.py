"""A serving unit as a drawing: prefill, the KV on its way, decode, and the domain below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from denvweb.core import units
from fleets.domain.types import Role
from fleets.domain.views import PoolView, ReplicaState, UnitView
from frontend import words
from frontend.gpumap import Picture
from frontend.words import Badge
from metrics.domain.types import Metric
from metrics.domain.views import GroupView

_BOXES_MAX = 4  # more replicas of one pool than this share a box
_LETTER = {Role.PREFILL: "P", Role.DECODE: "D", Role.AGGREGATED: "A"}


@dataclass(frozen=True, slots=True)
class Box:
    """One replica, or a whole pool when it has many."""

    chip: str  # `P1`, `P1–P6`
    role: str
    gpus: str
    badge: Badge | None  # only when it is not simply ready
    detail: str
    label: str  # of the meter
    value: str
    meter: int | None  # percent; None: not known
    foot_label: str
    foot: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A unit ready for its page."""

    view: UnitView
    canary: bool
    badge: Badge
    traffic: str
    per_s: float | None
    left: tuple[Box, ...]
    right: tuple[Box, ...]
    wires: tuple[str, ...]
    kv_label: str
    kv_rate: str  # `2.5 GB/s`; empty where the engines do not say
    goodput: str
    local: str
    domain: Picture | None
    nodes: int


def _gauge(replicas: Sequence[dict[str, float]], name: str, mean: bool = False) -> float | None:
    known = [gauges[name] for gauges in replicas if name in gauges]
    if not known:
        return None
    return sum(known) / (len(known) if mean else 1)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _box(pool: PoolView, chip: str, gauges: Sequence[dict[str, float]], badge: Badge | None, detail: str, replicas: int) -> Box:
    gpus = f"{replicas} × {pool.gpus} GPUs" if replicas > 1 else f"{pool.gpus} GPUs"
    kv_use, running, waiting = _gauge(gauges, "kv_use", mean=True), _gauge(gauges, "running"), _gauge(gauges, "waiting")
    if pool.role is Role.PREFILL:
        meter = None if waiting is None else min(100, round(waiting / 64 * 100))
        return Box(chip, pool.role.value, gpus, badge, detail, "queue", _number(waiting), meter, "running", _number(running))
    meter = None if kv_use is None else round(kv_use * 100)
    value = "?" if kv_use is None else f"{kv_use * 100:.0f}%"
    return Box(
        chip, pool.role.value, gpus, badge, detail, "KV in use", value, meter, "running, waiting", f"{_number(running)}, {_number(waiting)}"
    )


def _boxes(pool: PoolView) -> list[Box]:
    letter = _LETTER[pool.role]
    replicas = pool.replicas
    if len(replicas) > _BOXES_MAX:
        ready = Badge("ok", "ok", "ready") if pool.ready == pool.desired else Badge("warn", "held", f"{pool.ready} of {pool.desired} ready")
        return [_box(pool, f"{letter}×{len(replicas)}", [r.gauges for r in replicas], ready, "", len(replicas))]
    boxes = []
    for replica in replicas:
        badge = None if replica.state is ReplicaState.READY else words.replica_badge(replica.state.value)
        boxes.append(_box(pool, f"{letter}{replica.ordinal + 1}", [replica.gauges], badge, replica.detail, 1))
    return boxes


def _wires(left: int, right: int) -> tuple[str, ...]:
    ys = [(index + 0.5) / left * 100 for index in range(left)]
    ends = [(index + 0.5) / right * 100 for index in range(right)]
    return tuple(f"M0,{y:.0f}C55,{y:.0f} 45,{end:.0f} 99,{end:.0f}" for y in ys for end in ends)


def badge(unit: UnitView) -> Badge:
    """A unit's state."""
    if unit.failed:
        return Badge("bad", "bad", "failed")
    if unit.stopping:
        return Badge("info", "bake", "draining")
    if not unit.ready:
        return Badge("info", "roll", "starting")
    if not unit.complete:
        return Badge("warn", "held", "not complete")
    return Badge("ok", "ok", "ready") if unit.probed else Badge("info", "roll", "waits for its probe")


def _kv_rate(figures: GroupView | None, span_s: float) -> str:
    moved = figures.engines.get("kv_transfer_bytes") if figures else None
    return "" if moved is None else f"{units.format_bytes(moved / span_s)}/s"


def _goodput(figures: GroupView | None) -> str:
    good = figures.goodput if figures else None
    return "" if good is None or good.per_gpu_s is None else f"Goodput {good.per_gpu_s:.3g} req/s per GPU."


def draw(unit: UnitView, canary: bool, figures: GroupView | None, span_s: float, domain: Picture | None, nodes: int) -> Drawing:
    """A unit with its figures of the last `span_s` seconds."""
    left = [box for pool in unit.pools if pool.role is Role.PREFILL for box in _boxes(pool)]
    right = [box for pool in unit.pools if pool.role is not Role.PREFILL for box in _boxes(pool)]
    transfer = figures.latencies.get(Metric.KV_TRANSFER) if figures else None
    local = figures.local_ratio if figures else None
    return Drawing(
        view=unit,
        canary=canary,
        badge=badge(unit),
        traffic="no router speaks" if unit.weight_seen is None else f"{words.share(unit.weight_seen)} of the traffic",
        per_s=figures.per_s if figures else None,
        left=tuple(left),
        right=tuple(right),
        wires=_wires(len(left), len(right)) if left and right else (),
        kv_label=f"p99 {units.format_ms(transfer.p99_s)}" if transfer and transfer.p99_s is not None else "",
        kv_rate=_kv_rate(figures, span_s),
        goodput=_goodput(figures),
        local=f"{words.share(local)} prefilled locally, by decode." if local is not None and left else "",
        domain=domain,
        nodes=nodes,
    )
