"""Proposals: the fewest GPUs whose closed-form rates reach the load, packed into serving units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, sqrt

from fleets.domain.simulator.types import Limits, PoolShape, StageShape
from fleets.domain.sizing.load import Load, prefill_times
from fleets.domain.sizing.queueing import servers_for, wait_quantile_s
from fleets.domain.sizing.rates import (
    DecodeRate,
    aggregated_rate,
    decode_rate,
    first_token_s,
    replica_sizes,
    steps_of,
)
from fleets.domain.sizing.types import Serving
from fleets.domain.types import Role

_USE_MAX = 0.9  # of a pool's closed-form rate: the rest is for what is not in the form
_SEQUENCES_STEP = 128  # max-num-seqs is rounded up to a multiple of it
_BUDGETS = (512, 1024, 2048, 4096, 8192)  # chunk sizes that an aggregated pool may have
_NO_LIMIT_S = 60.0  # the wait for prefill that is borne when there is no limit to TTFT


@dataclass(frozen=True, slots=True)
class Apart:
    """A proposal with roles. `prefills` and `decodes` are replicas of the whole stage, before packing."""

    prefill_gpus: int
    decode_gpus: int
    prefills: int
    decodes: int
    rate: DecodeRate  # of one decode replica at its bound
    service_s: float  # of a mean remote prompt on a prefill replica
    service_spread: float
    wait_s: float  # what TTFT leaves for waiting

    def prefill_carries_per_s(self, replicas: int, load: Load) -> float:
        """Requests/s of all kinds at which waiting for prefill would use up its share of TTFT."""
        if not load.remote:
            return float("inf")
        low, high = 0.0, replicas / self.service_s
        for _ in range(40):
            middle = (low + high) / 2
            wait_s = wait_quantile_s(
                replicas, middle, self.service_s, q=0.99, gap_spread=load.gap_spread, service_spread=self.service_spread
            )
            low, high = (middle, high) if wait_s <= self.wait_s else (low, middle)
        return low / load.remote_ratio


@dataclass(frozen=True, slots=True)
class Packed:
    """So many units with so many replicas each."""

    units: int
    prefills: int
    decodes: int
    gpus: int


def proposals_apart(serving: Serving, load: Load, limits: Limits) -> list[Apart]:
    """Every pair of replica sizes that can keep the limits, with the replicas that it would take."""
    found = []
    for decode_gpus in replica_sizes(serving, Role.DECODE, load):
        rate = decode_rate(serving, load, decode_gpus, limits)
        if rate is None:
            continue
        for prefill_gpus in replica_sizes(serving, Role.PREFILL, load):
            if serving.hetero_tensor_parallel or prefill_gpus == decode_gpus:
                proposal = _apart(serving, load, limits, prefill_gpus, rate)
                if proposal is not None and prefill_gpus + decode_gpus <= serving.domain:
                    found.append(proposal)
    return found


def _apart(serving: Serving, load: Load, limits: Limits, prefill_gpus: int, rate: DecodeRate) -> Apart | None:
    decodes = max(1, ceil(load.rate_per_s / (_USE_MAX * rate.per_s)))
    if not load.remote:
        return Apart(prefill_gpus, rate.gpus, 1, decodes, rate, 0.0, 0.0, 0.0)
    budget = serving.roles[Role.PREFILL].max_batched_tokens
    service_s, spread = prefill_times(load.remote, steps_of(serving, prefill_gpus), budget)
    wait_s = _NO_LIMIT_S
    if limits.ttft_s is not None:
        wait_s = limits.ttft_s * _USE_MAX - first_token_s(serving, load, prefill_gpus, rate.step_s)
        if wait_s <= 0:
            return None
    prefills = servers_for(
        load.rate_per_s * load.remote_ratio, service_s, wait_s=wait_s, q=0.99, gap_spread=load.gap_spread, service_spread=spread
    )
    return Apart(prefill_gpus, rate.gpus, prefills, decodes, rate, service_s, spread, wait_s)


def packed(serving: Serving, proposal: Apart) -> Packed:
    """The fewest GPUs, then the fewest units, such that each unit fits a domain. Every unit has one replica of each role at least."""
    need = proposal.prefills * proposal.prefill_gpus + proposal.decodes * proposal.decode_gpus
    options = [option for option in _packings(serving, proposal, ceil(need / serving.domain)) if option is not None]
    return min(options, key=lambda option: (option.gpus, option.units))


def _packings(serving: Serving, proposal: Apart, first: int) -> Iterator[Packed | None]:
    fitting = 0
    for units in range(max(1, first), max(proposal.prefills, proposal.decodes, first) + 1):
        prefills, decodes = ceil(proposal.prefills / units), ceil(proposal.decodes / units)
        gpus = prefills * proposal.prefill_gpus + decodes * proposal.decode_gpus
        if gpus <= serving.domain:
            fitting += 1
            yield Packed(units, prefills, decodes, units * gpus)
        if fitting > 8:  # ever more units only add what rounding costs
            return


def shape_apart(serving: Serving, proposal: Apart, pack: Packed) -> StageShape:
    """As the simulator takes it."""
    pools = (
        PoolShape(Role.PREFILL, pack.prefills, proposal.prefill_gpus, 64, serving.roles[Role.PREFILL].max_batched_tokens),
        PoolShape(
            Role.DECODE,
            pack.decodes,
            proposal.decode_gpus,
            sequences_for(proposal.rate.batch),
            serving.roles[Role.DECODE].max_batched_tokens,
        ),
    )
    return StageShape(serving.model, serving.gpu, pack.units, pools, serving.conditional, calibration=serving.calibration)


def sequences_for(batch: float) -> int:
    """A `max-num-seqs` with room for the crowd that such a mean batch brings with it."""
    return max(256, ceil((batch + 4 * sqrt(batch)) / _SEQUENCES_STEP) * _SEQUENCES_STEP)


@dataclass(frozen=True, slots=True)
class Together:
    """A proposal without roles: replicas that do both, with chunks of `budget` tokens."""

    gpus: int  # of one replica
    budget: int
    replicas: int
    rate: DecodeRate


def proposals_together(serving: Serving, load: Load, limits: Limits) -> list[Together]:
    """Every replica size and chunk size that can keep the limits."""
    found = []
    for gpus in replica_sizes(serving, Role.AGGREGATED, load):
        for budget in _BUDGETS:
            rate = aggregated_rate(serving, load, gpus, budget, limits)
            if rate is not None:
                replicas = max(1, ceil(load.rate_per_s / (_USE_MAX * rate.per_s)))
                found.append(Together(gpus, budget, replicas, rate))
    return found


def shape_together(serving: Serving, proposal: Together) -> StageShape:
    """One replica a unit: the router balances units as it does replicas, and a rollout replaces them one at a time."""
    pool = PoolShape(Role.AGGREGATED, 1, proposal.gpus, sequences_for(proposal.rate.batch), proposal.budget)
    return StageShape(serving.model, serving.gpu, proposal.replicas, (pool,), serving.conditional, calibration=serving.calibration)


def more_prefill(proposal: Apart, over: float) -> Apart:
    """More prefill replicas: one at least, a tenth, or half as many again when a limit was missed by far."""
    return replace(proposal, prefills=_more(proposal.prefills, over))


def more_decode(proposal: Apart, over: float) -> Apart:
    """More decode replicas, by the same measure."""
    return replace(proposal, decodes=_more(proposal.decodes, over))


def _more(replicas: int, over: float) -> int:
    return max(replicas + 1, ceil(replicas * (1.5 if over > 3.0 else 1.1)))
