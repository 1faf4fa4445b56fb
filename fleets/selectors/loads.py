"""What a stage's units have in hand now, as its routers and its engines say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from denvweb.core import wire
from fleets.domain.protocol import UnitGauge
from fleets.domain.types import Role
from fleets.domain.views import ReplicaState, UnitView
from fleets.selectors.routing import live_routers


@dataclass(frozen=True, slots=True)
class UnitsLoad:
    """Of some units together; None is "nobody says"."""

    ready: dict[Role, int]  # replicas that serve
    prefill_queue: int | None  # prompts that wait, in routers and in prefill engines
    sequences: float | None  # requests in their decode leg
    kv_use: float | None  # of the fullest replica that decodes


def units_load(*, stage: str, units: Sequence[UnitView], now: datetime) -> UnitsLoad:
    """The load of these units of a stage: one query. A router that fell silent, and a replica that is gone, count no more."""
    names = {unit.unit for unit in units}
    routers = live_routers(stages=[stage], now=now)[stage]
    gauges = [gauge for router in routers for gauge in wire.from_plain(router.gauges, tuple[UnitGauge, ...]) if gauge.unit in names]
    ready: Counter[Role] = Counter()
    waiting, kv_uses = 0.0, []
    for unit in units:
        for pool in unit.pools:
            ready[pool.role] += pool.ready
            for replica in pool.replicas:
                if replica.state is not ReplicaState.READY:
                    continue
                if pool.role is Role.PREFILL:
                    waiting += replica.gauges.get("waiting", 0.0)
                elif "kv_use" in replica.gauges:
                    kv_uses.append(replica.gauges["kv_use"])
    return UnitsLoad(
        ready=dict(ready),
        prefill_queue=sum(gauge.prefill_queue for gauge in gauges) + round(waiting) if routers else None,
        sequences=float(sum(gauge.decode_inflight for gauge in gauges)) if routers else None,
        kv_use=max(kv_uses, default=None),
    )
