"""What an agent does about the difference between wanted and running."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fleets.agent import adoption, ranks
from fleets.agent.diff import KILL_AFTER_S, Action, Forget, Kill, Replace, Start, Terminate, diff, next_due_s, take_desired, waiting_for
from fleets.agent.processes import Marked
from fleets.agent.ranks import ProcessIdentity, Run
from fleets.domain.protocol import NodeSnapshot
from fleets.domain.types import RankDesired, RankState
from tests.agent_fakes import rank

PROCESS = ProcessIdentity(pid=10, started_ticks=1)


def run_of(rank_id: str = "k-1", *, process: ProcessIdentity | None = PROCESS, **changes: object) -> Run:
    run = ranks.claimed(replace(rank(rank_id), **changes), 0.0)  # type: ignore[arg-type]  # test data
    return ranks.launched(run, process, "e-1", 0.0) if process else run


def test_a_new_rank_is_claimed_under_hold_and_started_under_run() -> None:
    held = take_desired([rank("k-1", desired=RankDesired.HOLD)], {}, 0.0)
    assert held["k-1"].state is RankState.CLAIMED
    assert diff(held, 0.0) == ()
    freed = take_desired([rank("k-1")], held, 1.0)
    assert diff(freed, 1.0) == (Start("k-1"),)
    assert diff(freed, 1.0, launching={"k-1"}) == ()


def test_stop_is_asked_for_then_forced() -> None:
    runs = take_desired([rank("k-1", desired=RankDesired.STOP)], {"k-1": run_of()}, 5.0)
    assert diff(runs, 5.0) == (Terminate("k-1"),)
    runs["k-1"] = ranks.terminated(runs["k-1"], 5.0)
    assert diff(runs, 5.0 + KILL_AFTER_S - 0.01) == ()
    assert next_due_s(runs, 5.0) == 5.0 + KILL_AFTER_S
    (kill,) = diff(runs, 5.0 + KILL_AFTER_S)
    assert isinstance(kill, Kill)
    runs["k-1"] = ranks.killed(runs["k-1"], kill.reason)
    assert diff(runs, 100.0) == ()
    runs["k-1"] = ranks.exited(runs["k-1"], -9, "", 100.0, lambda: 0.5)
    assert runs["k-1"].state is RankState.STOPPED
    assert diff(runs, 100.0) == (), "it stays reported as stopped while the snapshot has it"
    assert diff(take_desired([], runs, 101.0), 101.0) == (Forget("k-1"),)


def test_a_rank_that_the_snapshot_left_out_is_ended_and_then_forgotten() -> None:
    runs = take_desired([], {"k-1": run_of()}, 1.0)
    assert diff(runs, 1.0) == (Terminate("k-1"),)
    assert runs["k-1"].state is RankState.DRAINING


def test_drain_and_hold_leave_a_running_engine_alone() -> None:
    for desired in (RankDesired.DRAIN, RankDesired.HOLD):
        runs = take_desired([rank("k-1", desired=desired)], {"k-1": run_of()}, 1.0)
        assert diff(runs, 1000.0 if desired is RankDesired.DRAIN else 1.0) == ()


def test_a_start_that_takes_too_long_is_killed() -> None:
    runs = {"k-1": run_of(start_deadline_s=60.0)}
    assert next_due_s(runs, 1.0) == 60.0
    assert diff(runs, 59.9) == ()
    (kill,) = diff(runs, 60.0)
    assert kill == Kill("k-1", "not ready within its start deadline of 60 s and killed")
    assert diff({"k-1": ranks.became_ready(runs["k-1"], 10.0)}, 600.0) == ()


def test_a_process_that_does_not_even_end_by_force_is_said() -> None:
    killed = ranks.killed(ranks.terminated(run_of(), 1.0), "it did not end")
    assert waiting_for(killed, {}).startswith("SIGKILL went out, and process 10 has not ended yet")
    assert waiting_for(ranks.exited(killed, -9, "", 2.0, lambda: 0.5), {}) == ""


def test_an_engine_that_hangs_is_replaced_once() -> None:
    hung = rank("k-1", hung_engine="e-1")
    runs = take_desired([hung], {"k-1": run_of()}, 1.0)
    (act,) = diff(runs, 1.0)
    assert isinstance(act, Replace) and act.reason.startswith("it hangs")
    killed = ranks.hung(runs["k-1"], act.reason)
    assert killed.hung_engine == "e-1" and diff({"k-1": killed}, 2.0) == ()
    dead = ranks.exited(killed, -9, "", 2.0, lambda: 0.5)
    assert dead.detail.startswith("it hangs") and dead.deaths == 1
    assert diff({"k-1": dead}, 100.0) == (Start("k-1"),)
    assert diff({"k-1": ranks.launched(dead, PROCESS, "e-2", 100.0)}, 101.0) == ()


def test_a_gpu_is_given_on_only_when_its_holder_is_gone() -> None:
    old = run_of("k-old", gpus=(0, 1), port=1)
    runs = take_desired([rank("k-new", gpus=(1, 2), port=2)], {"k-old": old}, 1.0)
    assert diff(runs, 1.0) == (Terminate("k-old"),)
    assert waiting_for(runs["k-new"], runs) == "waits for GPU 1, held by k-old (process 10)"
    runs["k-old"] = ranks.exited(ranks.terminated(runs["k-old"], 1.0), -15, "", 2.0, lambda: 0.5)
    assert set(diff(runs, 2.0)) == {Forget("k-old"), Start("k-new")}


def test_why_a_rank_waits() -> None:
    held = ranks.claimed(rank("k-1", desired=RankDesired.HOLD, count=4, gpus=(2, 3)), 0.0)
    assert waiting_for(held, {"k-1": held}) == "holds GPU 2, 3 until all 4 ranks of its replica hold theirs"
    assert waiting_for(run_of(), {}) == ""


class OneNode(RuleBasedStateMachine):
    """Orders, ends and time in any sequence; the actions are carried out as the agent does."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.runs: dict[str, Run] = {}
        self.next_pid = 100
        self.listed: dict[str, RankDesired] = {}

    def act(self) -> None:
        """As the agent: an end that came of an action is looked at again."""
        while actions := diff(self.runs, self.now_s):
            for action in actions:
                self.carry_out(action)

    def carry_out(self, action: Action) -> None:
        run = self.runs[action.rank_id]
        match action:
            case Start():
                assert run.spec.desired is RankDesired.RUN
                self.next_pid += 1
                self.runs[run.rank_id] = ranks.launched(run, ProcessIdentity(self.next_pid, 1), "e", self.now_s)
            case Terminate():
                self.runs[run.rank_id] = ranks.terminated(run, self.now_s)
            case Kill(reason=reason):
                killed = ranks.killed(run, reason)
                self.runs[run.rank_id] = ranks.exited(killed, -9, "", self.now_s, lambda: 0.5)
            case Forget():
                assert run.process is None
                del self.runs[run.rank_id]

    @rule(order=st.dictionaries(st.sampled_from(["k-a", "k-b", "k-c", "k-d"]), st.sampled_from(list(RankDesired))))
    def snapshot(self, order: dict[str, RankDesired]) -> None:
        gpus = {"k-a": (0, 1), "k-b": (1,), "k-c": (2, 3), "k-d": (0, 1, 2, 3)}
        ports = {"k-a": 1, "k-b": 2, "k-c": 3, "k-d": 4}
        specs = [rank(key, desired=desired, gpus=gpus[key], port=ports[key]) for key, desired in order.items()]
        self.listed = order
        self.runs = take_desired(specs, self.runs, self.now_s)
        self.act()

    @rule(which=st.integers(0, 3), code=st.sampled_from([0, 1, 3, -9, None]))
    def process_ends(self, which: int, code: int | None) -> None:
        live = [run for run in self.runs.values() if run.process]
        if live:
            run = live[which % len(live)]
            self.runs[run.rank_id] = ranks.exited(run, code, "log", self.now_s, lambda: 0.5)
            self.act()

    @rule(which=st.integers(0, 3))
    def engine_is_ready(self, which: int) -> None:
        starting = [run for run in self.runs.values() if run.state is RankState.STARTING]
        if starting:
            run = starting[which % len(starting)]
            self.runs[run.rank_id] = ranks.became_ready(run, self.now_s)

    @rule(seconds=st.floats(0.01, 700))
    def time_passes(self, seconds: float) -> None:
        due_s = next_due_s(self.runs, self.now_s)
        before_s = min(self.now_s + seconds, due_s - 1e-6)
        if before_s > self.now_s:
            assert diff(self.runs, before_s) == (), "before the next deadline there is nothing to do"
        self.now_s += seconds
        self.act()

    @invariant()
    def no_gpu_is_held_twice(self) -> None:
        held = [gpu for run in self.runs.values() if run.process for gpu in run.spec.gpus]
        assert len(held) == len(set(held))

    @invariant()
    def what_is_not_listed_is_ending(self) -> None:
        for rank_id, run in self.runs.items():
            if rank_id not in self.listed:
                assert run.process is not None
                assert run.term_s is not None

    @invariant()
    def states_tell_the_truth(self) -> None:
        alive = {RankState.STARTING, RankState.READY, RankState.DRAINING}
        for run in self.runs.values():
            assert (run.process is not None) == (run.state in alive)

    def teardown(self) -> None:
        """With orders that stay and enough time, everything comes to rest."""
        self.runs = take_desired([], self.runs, self.now_s)
        for _ in range(4):
            self.act()
            self.now_s += KILL_AFTER_S
        assert self.runs == {}
        assert next_due_s(self.runs, self.now_s) == math.inf


TestOneNode = OneNode.TestCase
TestOneNode.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def marked(rank_id: str, pid: int) -> Marked:
    return Marked(node="n", rank_id=rank_id, engine_id="e-9", process=ProcessIdentity(pid, 5))


def test_an_engine_that_no_file_knows_gets_its_rank_back_or_ends() -> None:
    snapshot = NodeSnapshot(node="n", generation=3, ranks=(rank("k-1"),))
    plan = adoption.plan({}, snapshot, [marked("k-1", 50), marked("k-2", 51)], 9.0)
    assert plan.runs["k-1"].process == ProcessIdentity(50, 5)
    assert plan.runs["k-1"].engine_id == "e-9"
    assert [orphan.rank_id for orphan in plan.orphans] == ["k-2"]


def test_without_a_snapshot_unknown_engines_wait_for_one() -> None:
    plan = adoption.plan({}, None, [marked("k-1", 50)], 9.0)
    assert (len(plan.strays), plan.orphans, dict(plan.runs)) == (1, (), {})


def test_an_engine_of_the_files_is_no_orphan_and_a_second_one_of_the_same_rank_is() -> None:
    runs = {"k-1": run_of("k-1", process=ProcessIdentity(50, 5))}
    plan = adoption.plan(runs, None, [marked("k-1", 50), marked("k-1", 51)], 9.0)
    assert plan.runs == runs
    assert [orphan.process.pid for orphan in plan.orphans] == [51]
