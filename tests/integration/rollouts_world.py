"""A stage on a small fleet whose agents and router do as they are told, driven by the real reconcilers on the real database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from denvweb.auth import token_create
from fleets.domain.protocol import ProbeResult, UnitGauge
from fleets.domain.views import UnitView
from fleets.selectors import router_table, routers_view, units_view
from metrics.domain.types import AlarmCount, Route, SeriesDelta, SeriesKey
from metrics.selectors import events_view
from releases.models import Rollout, Stage
from releases.reconcile import reconcile
from releases.services.releases import release_create
from tests.integration.fleets_world import World as FleetsWorld

STAGE = "ds-flash/prod-us"
YAML = """\
release:
  model: ds-flash
  weights: hf://meta-llama/Llama-3.1-70B@1605565b
  recipe: llama-3.1-70b/vllm@1
  topology: {{ prefill: {{ gpus: 4, replicas: {prefills} }}, decode: {{ gpus: 4, replicas: {decodes} }} }}
  kv-cache: {{ block-size: {block} }}
stages:
  prod-us:
    fleets: [gb200-use1]
    replicas: {units}
    alarms: {{ ttft-p99: 1500ms, error-rate: 1% }}
    rollout: {{ canary: 10%, steps: [50%, 100%], hold: 8s, bake: 8s, deadline: 10m, approve: {approve} }}
"""


def release_yaml(*, block: int = 16, units: int | str = 2, prefills: int | str = 1, decodes: int | str = 1, approve: str = "auto") -> str:
    """Another block size changes what the KV cache looks like, so the whole unit. Numbers may be ranges."""
    return YAML.format(block=block, units=units, prefills=prefills, decodes=decodes, approve=approve)


@dataclass
class Demo:
    """Three domains of one node with 8 GPUs, two units, one router."""

    domains: int = 3
    gpus: int = 8
    seq: int = 0
    live: bool = True
    gauges: tuple[UnitGauge, ...] = ()  # that the router reports
    slow: str = ""  # the release whose requests are over the limit
    fleets: FleetsWorld = field(init=False)

    def __post_init__(self) -> None:
        self.fleets = FleetsWorld(domains=self.domains, nodes=1, gpus=self.gpus)

    # ---- what runs beside the control plane ----

    def router(self, *, requests: int = 0) -> None:
        """One report: the newest table in force, every probe answered, and so many requests on each release with weight."""
        self.seq += 1
        stage = Stage.objects.filter(name="prod-us").first()
        if not self.live or stage is None:
            return
        view = routers_view(stage=STAGE, now=self.fleets.now)
        if not view.generation:
            self.fleets.router(seq=self.seq, generation=0)
            return
        table = router_table(stage=STAGE)
        probes = tuple(
            ProbeResult(unit.unit, True, "", tuple(replica.engine_id for replica in unit.replicas)) for unit in table.units if unit.probe
        )
        series = tuple(
            self._figures(unit.unit, unit.prefill_release, unit.decode_release, requests)
            for unit in table.units
            if unit.routable and table.weights.get(unit.release) and requests
        )
        self.fleets.router(seq=self.seq, generation=table.generation, probes=probes, series=series, gauges=self.gauges)

    def _figures(self, unit: str, prefill: str, decode: str, requests: int) -> SeriesDelta:
        over = requests // 2 if self.slow == decode else 0
        return SeriesDelta(
            key=SeriesKey(STAGE, unit, prefill, decode, Route.REMOTE),
            counters={"requests": requests},
            alarms={
                "ttft-p99": AlarmCount(requests, over),
                "error-rate": AlarmCount(requests, 0),
                "errors-plainly": AlarmCount(requests, 0),
            },
        )

    def tick(self, seconds: float = 1.0, *, requests: int = 0) -> None:
        """Time passes, agents and the router report, both reconcilers look."""
        self.router(requests=requests)
        self.fleets.tick(seconds, rounds=2)
        self.router()
        look = reconcile(self.fleets.now)
        assert look.failures == 0

    def settle(self, *, most: int = 40, requests: int = 0) -> None:
        """Until nothing is decided any more."""
        for _ in range(most):
            before = self._mark()
            self.tick(requests=requests)
            if self._mark() == before:
                return
        raise AssertionError(f"it never comes to rest: {self.rollout().state} {self.rollout().why}")

    def _mark(self) -> object:
        rollouts = list(Rollout.objects.order_by("pk").values_list("pk", "generation"))
        units = [
            (u.unit, u.release, u.ready, u.probed, u.routable, u.stopping, [(p.ready, p.desired, len(p.replicas)) for p in u.pools])
            for u in self.units()
        ]
        return rollouts, units, self.weights()

    def through(self, *, until: set[str], most: int = 60) -> Rollout:
        """With traffic and time, until the rollout is in one of these states."""
        for _ in range(most):
            self.tick(9.0, requests=400)
            if self.rollout().state in until:
                return self.rollout()
        raise AssertionError(f"{self.rollout().state}: {self.rollout().why}")

    # ---- what is seen ----

    def release(self, **fields: Any) -> Rollout:
        """Create a release; its one rollout."""
        return release_create(yaml=release_yaml(**fields), actor="ada", via="cli").rollouts[0]

    def first(self, **fields: Any) -> None:
        """A stage in service on its first release."""
        self.release(**fields)
        self.settle()
        assert self.rollout().state == Rollout.State.SUCCEEDED, self.rollout().why

    def rollout(self) -> Rollout:
        return Rollout.objects.select_related("stage__model", "from_release", "to_release").latest("created_at")

    def units(self, number: int | None = None) -> list[UnitView]:
        return [
            unit
            for unit in units_view(stage=STAGE, now=self.fleets.now)
            if number is None or (unit.release == f"ds-flash@{number}" and not unit.stopping)
        ]

    def weights(self) -> dict[str, int]:
        return routers_view(stage=STAGE, now=self.fleets.now).weights

    def stage(self) -> Stage:
        return Stage.objects.select_related("release", "previous").get(name="prod-us")

    def kinds(self) -> list[str]:
        return [event.kind for event in reversed(events_view(stage=STAGE, limit=500))]


def make_api(username: str = "ada") -> Client:
    """A client with a token of its own user."""
    user, _ = User.objects.get_or_create(username=username)
    return Client(headers={"authorization": f"Bearer {token_create(user=user)}"})
