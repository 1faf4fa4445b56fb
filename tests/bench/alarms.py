"""`make bench-alarms`: how often a healthy rollout is rolled back for nothing, and how soon a bad one is seen. Table, then one JSON object.

Whole rollouts by simulation: real `step`, real tests, default policy; only requests, machines and the clock are made up. The other rules
see the same requests on the same schedule.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from metrics.domain.alarm import NOTHING, plus
from metrics.domain.beta import interval
from metrics.domain.evidence import log_arm_evidence
from metrics.domain.types import AlarmCount
from metrics.domain.verdict import Arms, JudgeState, state_begin_anew, state_look, verdict_of
from metrics.domain.views import AlarmVerdict
from releases.domain.rollout_types import ENDED, Phase
from releases.domain.spec_types import RolloutPolicy
from tests.bench.compared import compared
from tests.bench.rules import NAMES, Rules
from tests.bench.streams import ALARMS, HEALTHY, Arrivals, Truth, counts, over, replayed, steady, traces
from tests.bench.unending import unending
from tests.domain.rollout_world import START, World

ALPHA = 0.01 / (len(ALARMS) + 1)  # the rollout's budget, shared by its alarms and the guard against plain errors, as releases does
RATES_PER_S = (5, 20, 100)
TIMES_THE_LIMIT = (3, 5, 10, 50)
DENV = "denv"
_LONGEST_S = 3 * 3600.0
SEED = 20261130
_SAY_EVERY = timedelta(minutes=1)


@dataclass(slots=True)
class Run:
    """How one rollout went: requests of the canary and seconds when it went bad, and when each rule that saw it rolled it back."""

    began: tuple[int, float] = (0, 0.0)
    tripped: dict[str, tuple[int, float]] = field(default_factory=dict)
    ended: Phase | None = None
    minutes: float = 0.0


@dataclass(slots=True)
class Judge:
    """What metrics keeps for a rollout, without its database."""

    states: dict[str, JudgeState] = field(default_factory=lambda: {spec.name: JudgeState() for spec in ALARMS})
    canary: dict[str, AlarmCount] = field(default_factory=lambda: {spec.name: NOTHING for spec in ALARMS})
    baseline: dict[str, AlarmCount] = field(default_factory=lambda: {spec.name: NOTHING for spec in ALARMS})

    last: dict[str, AlarmVerdict] = field(default_factory=dict)
    said_at: datetime = START

    def begin_anew(self) -> None:
        """At a new weight."""
        self.last = {}
        self.states = {spec.name: state_begin_anew(spec, self.states[spec.name]) for spec in ALARMS}
        self.canary = {spec.name: NOTHING for spec in ALARMS}
        self.baseline = {spec.name: NOTHING for spec in ALARMS}

    def look(self, world: World, canary: dict[str, AlarmCount], baseline: dict[str, AlarmCount] | None) -> tuple[AlarmVerdict, ...]:
        """The verdicts after these new counts."""
        verdicts = []
        for spec in ALARMS:
            name = spec.name
            self.canary[name] = plus(self.canary[name], canary[name])
            if baseline is not None:
                self.baseline[name] = plus(self.baseline[name], baseline[name])
            arms = Arms(self.canary[name], self.baseline[name] if baseline is not None else None)
            state = self.states[name] = state_look(spec, self.states[name], arms, world.now)
            if (
                name not in self.last
                or max(log_arm_evidence(spec, state.canary), self.last[name].evidence - 1) > 0
                or world.now - self.said_at >= _SAY_EVERY
            ):
                self.last[name] = verdict_of(spec, state, arms, alpha=ALPHA, fresh=True)
            else:  # no evidence at all: the verdict of less than a minute ago, to save its intervals and sentences
                self.last[name] = replace(self.last[name], n=arms.canary.n, k=arms.canary.k)
            verdicts.append(self.last[name])
        if world.now - self.said_at >= _SAY_EVERY:
            self.said_at = world.now
        return tuple(verdicts)


def rollout(rng: random.Random, arrivals: Arrivals, truth: Truth, *, look_s: float) -> Run:
    """One rollout, until it has ended or denv rolls it back; with a bad release, until the other rules have seen it too."""
    world = World(policy=RolloutPolicy())
    world.settle()  # the canary is up, proved, and has its first share
    judge, rules, run = Judge(), Rules(), Run()
    since, carried, offset_s, share, at_s = world.state.judged_since, 0.0, rng.uniform(0, 3600), world.share, 0.0
    while at_s < _LONGEST_S and (DENV not in run.tripped or (truth.bad is not None and len(rules.tripped) < len(NAMES))):
        if truth.bad_from_s > at_s:
            run.began = (rules.requests, at_s)
            rules.tripped.clear()
        at_s += look_s
        total = arrivals(rng, offset_s + at_s - look_s, offset_s + at_s)
        carried += total * share / 10_000
        mine, carried = int(carried), carried % 1
        ours = counts(rng, mine, truth, canary=True, at_s=at_s)
        theirs = None if share == 10_000 else counts(rng, total - mine, truth, canary=False, at_s=at_s)
        rules.look(over(ours), at_s)
        if DENV in run.tripped:
            continue  # only the other rules go on
        if world.state.judged_since != since:
            since = world.state.judged_since
            judge.begin_anew()
        world.now = START + timedelta(seconds=at_s)
        world.verdicts = judge.look(world, ours, theirs)
        _tick(world)
        if world.state.phase is Phase.ROLLING_BACK:
            run.tripped[DENV] = (rules.requests, at_s)
        elif world.state.phase in ENDED:
            break
        else:
            share = world.share
    run.tripped |= rules.tripped
    run.ended, run.minutes = world.state.phase, at_s / 60
    return run


def _tick(world: World) -> None:
    """A look; where it moves things, let machines and routers follow at once."""
    before = world.state.cursor
    world.tick()
    if world.state.cursor != before and world.state.phase not in ENDED:
        world.settle()


@dataclass(slots=True)
class Cell:
    """Rollouts of one kind."""

    name: str
    runs: list[Run]

    def rolled_back(self, rule: str) -> float:
        """Share of the rollouts that this rule rolls back."""
        return sum(rule in run.tripped for run in self.runs) / len(self.runs)

    def quantile(self, rule: str, which: int, share: float) -> float | None:
        """Requests (which 0) or minutes (1) until this rule rolls back; None when so many never are."""
        found = sorted(run.tripped[rule][which] - run.began[which] for run in self.runs if rule in run.tripped)
        place = int(share * (len(self.runs) - 1))
        return None if place >= len(found) else found[place] / (60 if which else 1)


def healthy(name: str, arrivals: Arrivals, *, bursts: bool, runs: int, look_s: float, seed: int = SEED) -> Cell:
    """Whole rollouts of a release that is as it should be."""
    rng = random.Random(f"{seed} {name} {bursts}")
    truths = [Truth(bursts=bursts, first_burst_s=rng.uniform(0, 600)) for _ in range(runs)]
    kind = "2-minute bursts" if bursts else "calm"
    return Cell(f"{name}, {kind}", [rollout(rng, arrivals, truth, look_s=look_s) for truth in truths])


def bad(name: str, arrivals: Arrivals, times: float, *, runs: int, look_s: float, from_s: float = 0.0, seed: int = SEED) -> Cell:
    """A canary whose TTFT is over the limit so many times as often as it may be, from some second on."""
    rng = random.Random(f"{seed} {name} {times} {from_s}")
    truth = Truth(bad=times * 0.01, bad_from_s=from_s)
    return Cell(name, [rollout(rng, arrivals, truth, look_s=look_s) for _ in range(runs)])


def _false_table(cells: list[Cell]) -> None:
    print(f"\nhealthy rollouts ({HEALTHY:.1%} over limits of 1%), rolled back for nothing\n")
    print(f"| requests | rollouts | denv | {' | '.join(NAMES)} | minutes, median (p90) |\n|{' --- |' * (len(NAMES) + 4)}")
    for cell in cells:
        lasted = sorted(run.minutes for run in cell.runs)
        shares = " | ".join(f"{cell.rolled_back(rule):.1%}" for rule in (DENV, *NAMES))
        print(
            f"| {cell.name} | {len(cell.runs)} | {shares} | {statistics.median(lasted):.0f} ({lasted[int(0.9 * (len(lasted) - 1))]:.0f}) |"
        )
    whole = Cell("all", [run for cell in cells for run in cell.runs])
    wrong = sum(DENV in run.tripped for run in whole.runs)
    low, high = interval(len(whole.runs), wrong)
    print(f"\nin all {wrong} of {len(whole.runs)} ({low:.2%} to {high:.2%} at 95% confidence)")


def _found_table(cells: list[Cell]) -> None:
    print("\nbad releases: requests of the canary and minutes until the rollback begins, median (p90)\n")
    print(
        f"| TTFT over the limit | denv, requests | denv, minutes | {', minutes | '.join(NAMES)}, minutes |\n|{' --- |' * (len(NAMES) + 3)}"
    )
    for cell in cells:
        others = " | ".join(_two(cell, rule, 1) for rule in NAMES)
        print(f"| {cell.name} | {_two(cell, DENV, 0)} | {_two(cell, DENV, 1)} | {others} |")


def _two(cell: Cell, rule: str, which: int) -> str:
    def text(value: float | None) -> str:
        return "never" if value is None else f"{value:.1f}" if which else f"{value:,.0f}"

    return f"{text(cell.quantile(rule, which, 0.5))} ({text(cell.quantile(rule, which, 0.9))})"


def measure(*, quick: bool, seed: int = SEED) -> dict[str, float]:
    """Run, print the tables, and give the figures."""
    runs, few = (2, 2) if quick else (200, 20)
    streams = {f"{per_s}/s": steady(per_s) for per_s in RATES_PER_S}
    recorded = {} if quick else {name: replayed(times) for name, times in traces().items()}
    fine = [
        healthy(name, arrivals, bursts=bursts, runs=runs, look_s=20, seed=seed)
        for bursts in (False, True)
        for name, arrivals in streams.items()
    ]
    fine += [
        healthy(name, arrivals, bursts=bursts, runs=few, look_s=20, seed=seed)
        for name, arrivals in recorded.items()
        for bursts in (False, True)
    ]
    _false_table(fine)
    often = 5 if quick else 60
    found = {
        (name, times): bad(f"{times} times, {name}", arrivals, times, runs=often, look_s=2, seed=seed)
        for times in TIMES_THE_LIMIT
        for name, arrivals in streams.items()
    }
    tens = [found[f"{per_s}/s", 10] for per_s in RATES_PER_S]
    cells = [
        *found.values(),
        *(bad(f"10 times, {name}", arrivals, 10, runs=few, look_s=2, seed=seed) for name, arrivals in recorded.items()),
    ]
    if not quick:
        cells += [
            bad(f"10 times from the middle of 50% on, {name}", arrivals, 10, runs=few, look_s=5, from_s=900, seed=seed)
            for name, arrivals in streams.items()
        ]
        cells += [
            bad(f"10 times from the bake on, {name}", arrivals, 10, runs=few, look_s=5, from_s=1500, seed=seed)
            for name, arrivals in streams.items()
        ]
    _found_table(cells)
    compared_wrong = compared(runs=2 if quick else 100, few=2 if quick else 20, seed=seed)
    unending(days=1 if quick else 90, few=2 if quick else 20, seed=seed)
    return {
        "false_rollback_ratio": max(compared_wrong, *(cell.rolled_back(DENV) for cell in fine)),
        "detect_10x_median_requests": max(cell.quantile(DENV, 0, 0.5) or float("inf") for cell in tens),
        "detect_10x_median_minutes": round(max(cell.quantile(DENV, 1, 0.5) or float("inf") for cell in tens), 2),
    }


def main() -> None:
    """All rollouts, or a few of each kind with --quick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few rollouts of each kind, in seconds")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    began_s = time.process_time()
    figures = measure(quick=options.quick, seed=options.seed)
    print(f"\n{time.process_time() - began_s:.0f} s of one core\n{json.dumps(figures)}")


if __name__ == "__main__":
    main()
