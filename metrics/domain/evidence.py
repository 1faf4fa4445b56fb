"""Evidence from exact counts that may be looked at at any time: e-processes, as logarithms.

An e-process starts at 1 and, while its null hypothesis holds, has an expectation of at most 1 at whatever moment somebody
chooses to look. So it passes 1/alpha with a chance of at most alpha, ever (Ville's inequality), and a judge who looks every
two seconds is not fooled more often than one who looks once. Sources: Howard & Ramdas, Bernoulli 28(3), 2022; Lindon & Malek,
NeurIPS 2022; Waudby-Smith & Ramdas, JRSS-B 2023; Shin, Ramdas & Rinaldo (e-detectors), 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import exp, log, log1p
from operator import add

from metrics.domain.alarm import BREACH_ODDS, NOTHING, health_bound, minus
from metrics.domain.alarm_text import ITL
from metrics.domain.beta import interval, log_beta, log_betainc, log_sum
from metrics.domain.types import AlarmCount, AlarmSpec

BREACH_PRIOR = (0.5, 12.0)  # Beta over the true share, cut to above the limit: most mass just over it, some far over it
HEALTH_PRIOR = (0.5, 60.0)  # the same for a healthy release, cut to under the bound
TOLERANCE = 1.25  # how many times the baseline's share the canary's may be
_RATIOS = tuple(16.0 ** ((i + 1) / 16) for i in range(16))  # alternatives, as multiples of the tolerance
RESTART_EVERY = 300  # requests of the canary
_ALTERNATIVES = 24
PLAINLY_BROKEN_RATIO = 0.2
_PLAINLY_BROKEN_REQUESTS = 10


@dataclass(frozen=True, slots=True)
class Alternatives:
    """What the breach test bets on instead of the limit: `weights` are logs and add up to 1.

    One request over the limit multiplies the wealth of each alternative by e^`over`, one within it by e^`within`.
    """

    weights: tuple[float, ...]
    over: tuple[float, ...]
    within: tuple[float, ...]


@lru_cache(maxsize=256)
def alternatives(p0: float) -> Alternatives:
    """The Beta prior cut to (p0, 1], as points: bins of equal ratio, each with its mass.

    Points and not the integral, because then looks add up in a few additions, restarts included; the evidence is within some percent of
    the integral's, and just as valid: any weights on alternatives over the limit make an e-process.
    """
    edges = [p0 ** (1 - i / _ALTERNATIVES) for i in range(_ALTERNATIVES + 1)]
    below = [exp(log_betainc(*BREACH_PRIOR, edge)[0]) for edge in edges[:-1]] + [1.0]
    weights = tuple(log(max(high - low, 1e-300) / (1 - below[0])) for low, high in pairwise(below))
    points = [(low * high) ** 0.5 for low, high in pairwise(edges)]
    return Alternatives(weights, tuple(log(p / p0) for p in points), tuple(log1p(-p) - log1p(-p0) for p in points))


@lru_cache(maxsize=256)
def _mass_below(prior: tuple[float, float], bound: float) -> float:
    """log of B(a, b) times the prior's mass below the bound."""
    return log_beta(*prior) + log_betainc(*prior, bound)[0]


def _log_likelihood(n: int, k: float, p: float) -> float:
    return k * log(p) + (n - k) * log1p(-p)


def log_health(n: int, k: float, bound: float) -> float:
    """Evidence after k of n against "the true share is at least `bound`"."""
    if n <= 0:
        return 0.0
    a, b = HEALTH_PRIOR
    below, _ = log_betainc(a + k, b + n - k, bound)
    return log_beta(a + k, b + n - k) + below - _mass_below(HEALTH_PRIOR, bound) - _log_likelihood(n, k, bound)


def _log_mean(logs: tuple[float, ...]) -> float:
    return log_sum(list(logs)) - log(len(logs)) if logs else 0.0


def log_health_of(spec: AlarmSpec, count: AlarmCount) -> float:
    """Evidence that the share is under twice the limit (metrics.domain.alarm.health_bound)."""
    if spec.metric == ITL:
        return _log_mean(count.bets[len(BREACH_ODDS) :])
    return log_health(count.n, count.k, health_bound(spec.p0))


def plainly_broken(n: int, errors: float) -> bool:
    """No statistics needed: at least 10 requests, and even the low end of the error ratio's interval is over 20%."""
    return n >= _PLAINLY_BROKEN_REQUESTS and interval(n, errors)[0] > PLAINLY_BROKEN_RATIO


# ---- tests that go on while time passes ----


@dataclass(frozen=True, slots=True)
class ArmState:
    """The breach test of one arm, restarted again and again so that long health does not make it deaf.

    Its evidence is the sum over restarts j of w_j E_j, with w_j = 1 / (j (j + 1)), which add up to 1; what has not started
    counts as 1. `logs` hold that sum for each alternative; a look multiplies all of it, and a restart adds its weight.
    """

    seen: AlarmCount = NOTHING
    logs: tuple[float, ...] = ()  # empty: only the first test has begun, and has seen nothing
    newest: int = 1  # the j of the newest restart
    newest_n: int = 0  # and the requests counted when it began


def log_weight(j: int) -> float:
    """log w_j."""
    return -log(j * (j + 1))


def _log_add(a: float, b: float) -> float:
    high, low = (a, b) if a > b else (b, a)
    return high + log1p(exp(low - high))


def _restarted(logs: tuple[float, ...], j: int) -> tuple[float, ...]:
    weight = log_weight(j)
    return tuple([_log_add(held, weight) for held in logs])


def bets_size(spec: AlarmSpec) -> int:
    """How many alternatives a breach test has."""
    return len(BREACH_ODDS) if spec.metric == ITL else _ALTERNATIVES


def log_increments(spec: AlarmSpec, new: AlarmCount) -> Sequence[float]:
    """What new counts multiply the wealth of each alternative by, as logarithms."""
    if spec.metric == ITL:
        return new.bets[: len(BREACH_ODDS)] or (0.0,) * len(BREACH_ODDS)
    bets, within = alternatives(spec.p0), new.n - new.k
    return [new.k * hit + within * miss for hit, miss in zip(bets.over, bets.within, strict=True)]


def log_weighted(spec: AlarmSpec, logs: Sequence[float]) -> float:
    """The logarithm of the weighted sum over alternatives."""
    weights = (-log(len(BREACH_ODDS)),) * len(BREACH_ODDS) if spec.metric == ITL else alternatives(spec.p0).weights
    return log_sum([*map(add, weights, logs)])


def _begun(logs: tuple[float, ...], size: int) -> tuple[float, ...]:
    return logs or (log_weight(1),) * size


def arm_look(spec: AlarmSpec, state: ArmState, total: AlarmCount) -> ArmState:
    """The state after a look at the counts so far. A look that finds nothing new changes nothing."""
    requests = total.n - state.seen.n
    if requests <= 0:
        return state
    logs, newest, newest_n = _begun(state.logs, bets_size(spec)), state.newest, state.newest_n
    if state.seen.n - newest_n >= RESTART_EVERY:
        newest, newest_n = newest + 1, state.seen.n
        logs = _restarted(logs, newest)
    logs = tuple([held + more for held, more in zip(logs, log_increments(spec, minus(total, state.seen)), strict=True)])
    return ArmState(total, logs, newest, newest_n)


def arm_begin_anew(spec: AlarmSpec, state: ArmState) -> ArmState:
    """Start counting from nothing, as at a new step, with what is spent and what is proved carried over."""
    return ArmState(logs=_restarted(_begun(state.logs, bets_size(spec)), state.newest + 1), newest=state.newest + 1)


def log_arm_evidence(spec: AlarmSpec, state: ArmState) -> float:
    """The logarithm of the weighted sum over restarts and alternatives."""
    if not state.logs:
        return 0.0
    return log_sum([log_weighted(spec, state.logs), -log(state.newest + 1)])


@dataclass(frozen=True, slots=True)
class RelativeState:
    """The test of canary against baseline, restarted like the others: the log wealth of each alternative ratio, and the counts used up."""

    logs: tuple[float, ...] = (log_weight(1),) * len(_RATIOS)
    canary: AlarmCount = NOTHING
    baseline: AlarmCount = NOTHING
    newest: int = 1
    newest_n: int = 0


def tolerance_of(spec: AlarmSpec) -> float:
    """How many times the baseline's share the canary's may be.

    A comparison of latencies has its tolerance in the thresholds: were the canary's latencies at most `over` times the baseline's,
    its share over `over` times the baseline's quantile would be at most the baseline's share over the quantile itself. That holds
    whatever the quantile was taken to be and however both move together, so the shares themselves must only not differ.
    """
    if spec.over is None:
        return TOLERANCE
    return spec.over if spec.base_s is None else 1.0


def baseline_count(spec: AlarmSpec, count: AlarmCount) -> AlarmCount:
    """The baseline's counts as they are compared with the canary's."""
    return count if spec.base_s is None else replace(count, k=count.base_k)


def relative_look(state: RelativeState, canary: AlarmCount, baseline: AlarmCount, tolerance: float = TOLERANCE) -> RelativeState:
    """Bet on whose exceedances the new ones are.

    Were the canary's share r times the baseline's, an exceedance would be the canary's with chance r m / (r m + n), m and n
    being both arms' requests since the look before. So the split may change with every step of a rollout, and a burst that
    hits both arms says nothing. Each r over the tolerance bets against the tolerance itself, the worst of what is allowed:
    for independent requests with shares p <= tolerance * q, the wealth's expectation is at most
    exp(m p (u - 1) + n q (v - 1)) <= 1, u and v being what one exceedance of either arm multiplies it by.
    """
    requests = canary.n - state.canary.n, baseline.n - state.baseline.n
    over = max(0.0, canary.k - state.canary.k), max(0.0, baseline.k - state.baseline.k)
    if max(requests) <= 0:
        return state
    logs, newest, newest_n = state.logs, state.newest, state.newest_n
    if state.canary.n - newest_n >= RESTART_EVERY:
        newest, newest_n = newest + 1, state.canary.n
        logs = _restarted(logs, newest)
    if min(requests) > 0:
        logs = tuple([held + _log_ratio(ratio, tolerance, requests, over) for held, ratio in zip(logs, _RATIOS, strict=True)])
    return RelativeState(logs, canary, baseline, newest, newest_n)


def relative_begin_anew(state: RelativeState) -> RelativeState:
    """Start counting from nothing, with what is proved carried over."""
    return RelativeState(logs=_restarted(state.logs, state.newest + 1), newest=state.newest + 1)


def _log_ratio(times: float, tolerance: float, requests: tuple[int, int], over: tuple[float, float]) -> float:
    """log of the binomial likelihood at `times` the tolerance over that at the tolerance."""
    if not over[0] and not over[1]:
        return 0.0
    m, n = requests
    both = log((tolerance * m + n) / (times * tolerance * m + n))
    return over[0] * log(times) + (over[0] + over[1]) * both


def log_relative_evidence(state: RelativeState) -> float:
    """Evidence that the canary's share is over the tolerance times the baseline's."""
    return log_sum([_log_mean(state.logs), -log(state.newest + 1)])


def as_ratio(log_evidence: float) -> float:
    """Evidence as a plain number that JSON can hold."""
    return exp(min(log_evidence, 690.0))
