"""Alarms between rollouts: a test that never ends, never grows deaf, and pages at random no more often than is said.

A rollout's test spends a budget once. Here there is no end, so what is bounded is how often it is wrong: an e-detector of the
Shiryaev-Roberts kind (Shin, Ramdas & Rinaldo, 2022) sums the e-processes that began at each restart. While the limit is kept the
sum's expectation is at most the number of restarts, so it passes A after A restarts on average, or later. With a restart every
five minutes and A for one false page in 30 days, shared by the stage's alarms, that is the promise for a service exactly at its
limit; one that keeps well under it waits far longer. As every breach without a baseline it must also last (metrics.domain.spell).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import exp, log1p

from denvweb.core.units import format_duration
from metrics.domain.alarm import NOTHING, plus
from metrics.domain.alarm_text import ERROR_RATE
from metrics.domain.evidence import as_ratio, bets_size, log_increments, log_weighted, plainly_broken
from metrics.domain.spell import LASTS_S, Spell, spell_look
from metrics.domain.types import AlarmCount, AlarmSpec
from metrics.domain.verdict import counted_verdict
from metrics.domain.verdict_text import counted_text, ratio_text
from metrics.domain.views import AlarmVerdict

BLOCK_S = 30  # figures are taken up in blocks of so many seconds, each once
LATE_S = 15  # and so long after their end, so that routers' reports are in
RESTART_BLOCKS = 10
FALSE_PAGE_EVERY_S = 30 * 86_400.0  # of a stage that is exactly at all of its limits
_SHOWN_BLOCKS = 10  # what people are told of is the last five minutes
_NO_SPELL = Spell()


@dataclass(frozen=True, slots=True)
class SteadyState:
    """What the test of one alarm of one stage remembers. `logs`: of the sum over restarts, for each alternative."""

    logs: tuple[float, ...] = ()
    blocks: int = 0  # since the newest restart
    total: AlarmCount = NOTHING
    over: Spell = _NO_SPELL  # how long the share has been over its limit
    under: Spell = _NO_SPELL  # and within it
    recent: tuple[AlarmCount, ...] = ()
    breached_at: datetime | None = None
    told: str = ""  # what was said when it was


def pages_at(alarms: int) -> float:
    """The evidence at which one of so many alarms of a stage pages."""
    return max(1, alarms) * FALSE_PAGE_EVERY_S / (RESTART_BLOCKS * BLOCK_S)


def steady_look(spec: AlarmSpec, state: SteadyState, block: AlarmCount, at: datetime, *, alarms: int) -> SteadyState:
    """The state after the block that ended at `at`. Silence is neither a breach nor a recovery."""
    if not block.n:
        return state
    state = replace(
        state,
        logs=_grown(spec, state, block),
        blocks=(state.blocks + 1) if state.blocks < RESTART_BLOCKS else 1,
        total=AlarmCount(state.total.n + block.n, state.total.k + block.k),
        recent=(*state.recent, AlarmCount(block.n, block.k))[-_SHOWN_BLOCKS:],
    )
    state = replace(
        state, over=spell_look(spec.p0, state.over, state.total, at), under=spell_look(spec.p0, state.under, state.total, at, within=True)
    )
    if state.breached_at is None:
        return replace(state, breached_at=at, under=Spell(at, state.total)) if _breaches(spec, state, block, alarms) else state
    if state.under.lasted_s < LASTS_S:
        return state
    return SteadyState(total=state.total, recent=state.recent)  # over: what was proved is spent, and the test begins anew


def _grown(spec: AlarmSpec, state: SteadyState, block: AlarmCount) -> tuple[float, ...]:
    logs = state.logs or (0.0,) * bets_size(spec)
    if state.blocks >= RESTART_BLOCKS:
        logs = tuple([_plus_one(held) for held in logs])
    return tuple([held + more for held, more in zip(logs, log_increments(spec, block), strict=True)])


def _plus_one(log_held: float) -> float:
    return log_held + log1p(exp(-log_held)) if log_held > 0 else log1p(exp(log_held))


def _breaches(spec: AlarmSpec, state: SteadyState, block: AlarmCount, alarms: int) -> bool:
    if spec.metric == ERROR_RATE and plainly_broken(block.n, block.k):
        return True
    return state.over.lasted_s >= LASTS_S and as_ratio(log_weighted(spec, state.logs)) >= pages_at(alarms)


def steady_sentence(spec: AlarmSpec, state: SteadyState, *, alarms: int) -> str:
    """`ttft-p99: 61 of 1,204 requests over 1,500 ms (5.1%, ...) in 5:00 min, for 4:00 min without a break; evidence ...`."""
    verdict = steady_verdict(spec, state, alarms=alarms)
    lasted = f", for {format_duration(state.over.lasted_s)} without a break" if state.over.lasted_s else ""
    within = format_duration(len(state.recent) * BLOCK_S)
    odds = f"evidence {ratio_text(verdict.evidence)}, told at {ratio_text(verdict.trips_at)}"
    return f"{spec.name}: {counted_text(verdict)} in {within}{lasted}; {odds}"


def steady_verdict(spec: AlarmSpec, state: SteadyState, *, alarms: int) -> AlarmVerdict:
    """The figures of the last five minutes with the evidence of all of it."""
    evidence = log_weighted(spec, state.logs) if state.logs else 0.0
    broken = state.breached_at is not None
    found = counted_verdict(spec, _sum(state.recent), log_evidence=evidence, trips_at=pages_at(alarms), tripped=broken)
    return replace(found, lasted_s=state.over.lasted_s)


def _sum(counts: Sequence[AlarmCount]) -> AlarmCount:
    total = NOTHING
    for count in counts:
        total = plus(total, count)
    return total
