"""How events change one rank."""

from __future__ import annotations

from dataclasses import replace

from fleets.agent import ranks
from fleets.agent.ranks import ProcessIdentity, Run
from fleets.domain.types import RankDesired, RankState
from tests.agent_fakes import rank

PROCESS = ProcessIdentity(pid=4242, started_ticks=77)


def running(now_s: float = 0.0, **changes: object) -> Run:
    return ranks.launched(ranks.claimed(replace(rank("k-1"), **changes), now_s), PROCESS, "e-1", now_s)  # type: ignore[arg-type]  # test data


def half() -> float:
    return 0.5


def die(run: Run, code: int | None, now_s: float) -> Run:
    return ranks.exited(run, code, "boom", now_s, half)


def test_the_way_of_a_healthy_rank() -> None:
    run = ranks.claimed(rank("k-1", desired=RankDesired.HOLD), 1.0)
    assert run.state is RankState.CLAIMED
    assert not run.wanted
    run = ranks.retargeted(run, rank("k-1"), 2.0)
    assert run.wanted
    run = ranks.launched(run, PROCESS, "e-1", 3.0)
    assert (run.state, run.since_s) == (RankState.STARTING, 3.0)
    run = ranks.became_ready(run, 4.0)
    assert (run.state, run.since_s) == (RankState.READY, 4.0)
    run = ranks.retargeted(run, rank("k-1", desired=RankDesired.DRAIN, release="m@2"), 5.0)
    assert (run.state, run.spec.release) == (RankState.DRAINING, "m@2")
    run = ranks.retargeted(run, rank("k-1", desired=RankDesired.STOP), 6.0)
    run = ranks.terminated(run, 6.0)
    run = die(run, -15, 7.0)
    assert (run.state, run.deaths, run.process) == (RankState.STOPPED, 0, None)


def test_a_drain_that_is_taken_back_leaves_the_engine_as_it_was() -> None:
    run = ranks.became_ready(running(), 1.0)
    run = ranks.retargeted(run, rank("k-1", desired=RankDesired.DRAIN), 2.0)
    run = ranks.retargeted(run, rank("k-1"), 3.0)
    assert run.state is RankState.READY


def test_six_deaths_in_a_row_are_the_end_and_the_reason_is_told() -> None:
    run = running()
    for death in range(1, ranks.DEATHS_MAX + 1):
        run = die(run, 1, float(death))
        if death < ranks.DEATHS_MAX:
            assert run.state is RankState.BACKOFF
            assert f"try {death + 1} in" in run.detail
            run = ranks.launched(run, PROCESS, f"e-{death}", death + 0.5)
    assert run.state is RankState.FAILED
    assert not run.wanted
    assert "given up after 6 deaths in a row" in run.detail
    assert run.detail.endswith("boom")
    assert run.restarts == 5


def test_an_engine_that_takes_minutes_to_die_is_a_crash_loop_too() -> None:
    run = running()
    for death in range(ranks.DEATHS_MAX):
        run = die(run, 1, 400.0 * (death + 1))
        if run.state is RankState.BACKOFF:
            run = ranks.launched(run, PROCESS, "e", 400.0 * (death + 1) + 30)
    assert run.state is RankState.FAILED


def test_a_minute_of_readiness_wipes_the_slate() -> None:
    run = running()
    for _ in range(4):
        run = ranks.launched(die(run, 1, 10.0), PROCESS, "e", 20.0)
    assert run.deaths == 4
    ready = ranks.became_ready(run, 30.0)
    assert die(ready, 1, 30.0 + ranks.STEADY_S - 1).deaths == 5
    assert die(ready, 1, 30.0 + ranks.STEADY_S).deaths == 1


def test_deaths_by_another_ranks_fault_do_not_use_up_the_tries() -> None:
    run = running(count=4, index=2)
    for _ in range(ranks.DEATHS_MAX + 2):
        run = ranks.launched(die(run, 3, 10.0), PROCESS, "e", 20.0)
    assert not run.failed
    assert "another rank of its replica went away" in die(run, 3, 11.0).detail
    alone = running(count=1)
    for _ in range(ranks.DEATHS_MAX):
        alone = ranks.launched(die(alone, 3, 10.0), PROCESS, "e", 20.0)
    assert alone.failed


def test_waits_grow_and_are_jittered() -> None:
    waits = []
    run = running()
    for _ in range(5):
        run = die(run, 1, 0.0)
        waits.append(run.next_start_s)
        run = ranks.launched(run, PROCESS, "e", 0.0)
    assert waits == sorted(waits)
    assert waits[-1] > 8 * waits[0]
    assert ranks.exited(running(), 1, "", 0.0, lambda: 0.0).next_start_s < ranks.exited(running(), 1, "", 0.0, lambda: 0.99).next_start_s


def test_an_end_that_was_asked_for_is_no_death() -> None:
    draining = ranks.retargeted(running(), rank("k-1", desired=RankDesired.DRAIN), 1.0)
    assert (die(draining, 0, 2.0).state, die(draining, 0, 2.0).deaths) == (RankState.STOPPED, 0)
    wanted_again = ranks.retargeted(ranks.terminated(draining, 1.5), rank("k-1"), 1.6)
    ended = die(wanted_again, -15, 2.0)
    assert (ended.deaths, ended.wanted) == (0, True)


def test_a_kill_is_told_with_its_reason() -> None:
    run = ranks.killed(running(), "not ready within its start deadline of 600 s and killed")
    assert die(run, -9, 600.0).detail.startswith("not ready within its start deadline of 600 s and killed after 10 min; try 2 in")


def test_exit_sentences() -> None:
    assert ranks.exit_sentence(1) == "ended with code 1"
    assert ranks.exit_sentence(-9) == "killed by signal 9"
    assert ranks.exit_sentence(None) == "ended"
