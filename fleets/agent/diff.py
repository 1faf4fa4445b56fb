"""From what is wanted and what runs to what is to be done now. Pure, so that each rule can be tested without a process."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from fleets.agent import ranks
from fleets.agent.ranks import Run
from fleets.domain.protocol import RankSpec
from fleets.domain.types import RankDesired, RankState

KILL_AFTER_S = 10.0  # from SIGTERM to SIGKILL


@dataclass(frozen=True, slots=True)
class Start:
    """Start its engine."""

    rank_id: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask its engine to end."""

    rank_id: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End it by force."""

    rank_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Replace:
    """End it by force because it hangs; another one follows."""

    rank_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing is left of it, and nobody asks for it."""

    rank_id: str


Action = Start | Terminate | Kill | Replace | Forget


def take_desired(desired: Iterable[RankSpec], runs: Mapping[str, Run], now_s: float) -> dict[str, Run]:
    """The runs under a new snapshot: new ranks claimed, known ones retargeted, those that it left out marked as orphans."""
    specs = {spec.rank_id: spec for spec in desired}
    taken = {}
    for rank_id, spec in specs.items():
        run = runs.get(rank_id)
        taken[rank_id] = ranks.claimed(spec, now_s) if run is None else ranks.retargeted(run, spec, now_s)
    for rank_id, run in runs.items():
        if rank_id not in specs:
            taken[rank_id] = ranks.unlisted(run, now_s)
    return taken


def diff(runs: Mapping[str, Run], now_s: float, launching: Collection[str] = ()) -> tuple[Action, ...]:
    """What to do now. `launching` are ranks whose start was ordered but whose process is not there yet.

    Two ranks never get the same GPU or port at once: a start waits until the old holder's process is gone.
    A running rank under HOLD is left alone: what serves is never stopped by an order to wait.
    """
    actions: list[Action] = []
    busy: set[tuple[str, int]] = set()
    for run in runs.values():
        if run.process is not None:
            actions.extend(_end(run, now_s))
        elif not run.listed and run.rank_id not in launching:
            actions.append(Forget(run.rank_id))
        if run.process is not None or run.rank_id in launching:
            busy |= _holds(run)
    for rank_id in sorted(runs):
        run = runs[rank_id]
        startable = run.process is None and run.wanted and rank_id not in launching and now_s >= run.next_start_s
        if startable and not busy & _holds(run):
            busy |= _holds(run)
            actions.append(Start(rank_id))
    return tuple(actions)


def _end(run: Run, now_s: float) -> Iterator[Action]:
    if run.killed:
        return
    if run.term_s is not None:
        if now_s >= run.term_s + KILL_AFTER_S:
            yield Kill(run.rank_id, f"it did not end within {KILL_AFTER_S:.0f} s of SIGTERM and was killed")
    elif run.spec.desired is RankDesired.STOP:
        yield Terminate(run.rank_id)
    elif run.engine_id and run.engine_id == run.spec.hung_engine:
        yield Replace(run.rank_id, "it hangs: it answers, but none of the requests that routers sent it went on")
    elif run.state is RankState.STARTING and now_s >= run.started_s + run.spec.start_deadline_s:
        yield Kill(run.rank_id, f"not ready within its start deadline of {run.spec.start_deadline_s:.0f} s and killed")


def _holds(run: Run) -> set[tuple[str, int]]:
    return {("gpu", gpu) for gpu in run.spec.gpus} | {("port", run.spec.port)}


def next_due_s(runs: Mapping[str, Run], now_s: float) -> float:
    """When time alone will next give `diff` something that it did not see at `now_s`; infinite when only an event can."""
    due_s = math.inf
    for run in runs.values():
        if run.process is None:
            if run.wanted and run.next_start_s > now_s:
                due_s = min(due_s, run.next_start_s)
        elif run.term_s is not None and not run.killed:
            due_s = min(due_s, run.term_s + KILL_AFTER_S)
        elif run.state is RankState.STARTING and not run.killed:
            due_s = min(due_s, run.started_s + run.spec.start_deadline_s)
    return due_s


def waiting_for(run: Run, runs: Mapping[str, Run]) -> str:
    """Why a rank does not start or end, in a sentence; empty when nothing holds it up."""
    if run.killed and run.process is not None:
        return f"SIGKILL went out, and process {run.process.pid} has not ended yet: while it hangs in the kernel its GPUs are not free"
    if run.state is not RankState.CLAIMED:
        return ""
    if run.spec.desired is RankDesired.HOLD:
        return f"holds GPU {_numbers(run.spec.gpus)} until all {run.spec.count} ranks of its replica hold theirs"
    for other in runs.values():
        if other.process is not None and other.rank_id != run.rank_id and _holds(other) & _holds(run):
            shared = sorted(set(other.spec.gpus) & set(run.spec.gpus))
            what = f"GPU {_numbers(shared)}" if shared else f"port {run.spec.port}"
            return f"waits for {what}, held by {other.rank_id} (process {other.process.pid})"
    return ""


def _numbers(values: Collection[int]) -> str:
    return ", ".join(str(value) for value in sorted(values))
