"""Evidence from exact counts that may be looked at at any time: e-processes, as logarithms.

An e-process starts at 1 and, while its null hypothesis holds, has an expectation of at most 1 at whatever moment somebody
chooses to look. So it passes 1/alpha with a chance of at most alpha, ever (Ville's inequality), and a judge who looks every
two seconds is not fooled more often than one who looks once. Sources: Howard & Ramdas, Bernoulli 28(3), 2022; Lindon & Malek,
NeurIPS 2022; Waudby-Smith & Ramdas, JRSS-B 2023; Shin, Ramdas & Rinaldo (e-detectors), 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, log, log1p

from metrics.domain.alarm import BREACH_ODDS, ITL, NOTHING, health_bound, minus
from metrics.domain.beta import interval, log_beta, log_betainc, log_sum
from metrics.domain.types import AlarmCount, AlarmSpec

BREACH_PRIOR = (0.5, 12.0)  # Beta over the true share, cut to above the limit: most mass just over it, some far over it
HEALTH_PRIOR = (0.5, 60.0)  # the same for a healthy release, cut to under the bound
TOLERANCE = 1.25  # how many times the baseline's share the canary's may be
_RATIOS = tuple(TOLERANCE * (20.0 / TOLERANCE) ** ((i + 1) / 16) for i in range(16))  # alternatives, up to 20 times
RESTART_EVERY = 300  # requests
RESTARTS_KEPT = 30
PLAINLY_BROKEN_RATIO = 0.2
_PLAINLY_BROKEN_REQUESTS = 10


@lru_cache(maxsize=256)
def _mass(prior: tuple[float, float], bound: float) -> tuple[float, float]:
    """log of B(a, b) times the prior's mass below the bound, and above it."""
    below, above = log_betainc(*prior, bound)
    whole = log_beta(*prior)
    return whole + below, whole + above


def _log_likelihood(n: int, k: float, p: float) -> float:
    return k * log(p) + (n - k) * log1p(-p)


def log_breach(n: int, k: float, p0: float) -> float:
    """Evidence after k of n against "the true share is at most p0": the mixture of alternatives over the limit's likelihood."""
    if n <= 0:
        return 0.0
    a, b = BREACH_PRIOR
    _, above = log_betainc(a + k, b + n - k, p0)
    return log_beta(a + k, b + n - k) + above - _mass(BREACH_PRIOR, p0)[1] - _log_likelihood(n, k, p0)


def log_health(n: int, k: float, bound: float) -> float:
    """Evidence after k of n against "the true share is at least `bound`"."""
    if n <= 0:
        return 0.0
    a, b = HEALTH_PRIOR
    below, _ = log_betainc(a + k, b + n - k, bound)
    return log_beta(a + k, b + n - k) + below - _mass(HEALTH_PRIOR, bound)[0] - _log_likelihood(n, k, bound)


def _log_mean(logs: tuple[float, ...]) -> float:
    return log_sum(list(logs)) - log(len(logs)) if logs else 0.0


def log_breach_of(spec: AlarmSpec, count: AlarmCount) -> float:
    """Evidence that the alarm's limit is broken; for ITL by the wealth of the bets, spread evenly over the stakes."""
    if spec.metric == ITL:
        return _log_mean(count.bets[: len(BREACH_ODDS)])
    return log_breach(count.n, count.k, spec.p0)


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
    counts as 1. `restarts` are the counts at which the kept ones began: the very first, and the newest.
    """

    seen: AlarmCount = NOTHING
    restarts: tuple[tuple[int, AlarmCount], ...] = ((1, NOTHING),)  # (j, counts then)
    log_carried: float | None = None  # of tests that ended, when the counts began anew; None: of none

    @property
    def newest(self) -> int:
        """The j of the newest restart."""
        return self.restarts[-1][0]


def log_weight(j: int) -> float:
    """log w_j."""
    return -log(j * (j + 1))


def arm_look(state: ArmState, total: AlarmCount) -> ArmState:
    """The state after a look at the counts so far. A look that finds nothing new changes nothing."""
    restarts = state.restarts
    if total.n - restarts[-1][1].n >= RESTART_EVERY:
        restarts = (*restarts, (state.newest + 1, total))
        if len(restarts) > RESTARTS_KEPT:
            restarts = (restarts[0], *restarts[-RESTARTS_KEPT + 1 :])  # leaving one out only lowers the evidence
    return ArmState(seen=total, restarts=restarts, log_carried=state.log_carried)


def arm_begin_anew(spec: AlarmSpec, state: ArmState) -> ArmState:
    """Start counting from nothing, as at a new step, with what is spent and what is proved carried over."""
    return ArmState(restarts=((state.newest + 1, NOTHING),), log_carried=log_sum(_weighted(spec, state)))


def log_arm_evidence(spec: AlarmSpec, state: ArmState) -> float:
    """The weighted sum's logarithm."""
    return log_sum([*_weighted(spec, state), -log(state.newest + 1)])


def _weighted(spec: AlarmSpec, state: ArmState) -> list[float]:
    running = [log_weight(j) + log_breach_of(spec, minus(state.seen, begun)) for j, begun in state.restarts]
    return running if state.log_carried is None else [state.log_carried, *running]


@dataclass(frozen=True, slots=True)
class RelativeState:
    """The test of canary against baseline: the log wealth of each alternative ratio, and the counts it has used up."""

    logs: tuple[float, ...] = (0.0,) * len(_RATIOS)
    canary: AlarmCount = NOTHING
    baseline: AlarmCount = NOTHING


def relative_look(state: RelativeState, canary: AlarmCount, baseline: AlarmCount) -> RelativeState:
    """Bet on whose exceedances the new ones are.

    Were the canary's share r times the baseline's, an exceedance would be the canary's with chance r m / (r m + n), m and n
    being both arms' requests since the look before. So the split may change with every step of a rollout, and a burst that
    hits both arms says nothing. Each r over the tolerance bets against the tolerance itself, the worst of what is allowed:
    for independent requests with shares p <= tolerance * q, the wealth's expectation is at most
    exp(m p (u - 1) + n q (v - 1)) <= 1, u and v being what one exceedance of either arm multiplies it by.
    """
    requests = canary.n - state.canary.n, baseline.n - state.baseline.n
    over = max(0.0, canary.k - state.canary.k), max(0.0, baseline.k - state.baseline.k)
    logs = state.logs
    if min(requests) > 0:
        logs = tuple(held + _log_ratio(ratio, requests, over) for held, ratio in zip(state.logs, _RATIOS, strict=True))
    elif max(requests) <= 0:
        return state
    return RelativeState(logs=logs, canary=canary, baseline=baseline)


def _log_ratio(ratio: float, requests: tuple[int, int], over: tuple[float, float]) -> float:
    """log of the binomial likelihood at `ratio` over that at the tolerance."""
    m, n = requests
    canary = log(ratio / TOLERANCE)
    both = log((TOLERANCE * m + n) / (ratio * m + n))
    return over[0] * canary + (over[0] + over[1]) * both


def log_relative_evidence(state: RelativeState) -> float:
    """Evidence that the canary's share is over the tolerance times the baseline's."""
    return _log_mean(state.logs)


def as_ratio(log_evidence: float) -> float:
    """Evidence as a plain number that JSON can hold."""
    return exp(min(log_evidence, 690.0))
