"""When an engine hangs, and when it only takes its time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleets.domain.stall import GAP_S, SILENT_S, STUCK_S, Pulse, look, silence, stuck


def _seen(*looks: tuple[float, bool, bool, tuple[float, ...]]) -> Pulse:
    pulse = None
    for now_s, answered, busy, marks in looks:
        pulse = look(pulse, now_s=now_s, answered=answered, busy=busy, marks=marks)
    assert pulse is not None
    return pulse


def test_a_stopped_process_is_silent_and_one_lost_answer_is_not() -> None:
    asked = [(2.0 * n, n < 1, False, ()) for n in range(7)]
    assert not silence(_seen(*asked[:5]))
    assert silence(_seen(*asked[:6])) == "it hangs: no answer for 10 s, though its process is there"
    assert not silence(_seen((0.0, True, False, ()), (7.9, False, False, ())), after_s=5.0)
    assert not silence(_seen(*asked, (13.0, True, False, ())))


def test_an_engine_that_answers_but_makes_no_step_is_stuck() -> None:
    still = [(float(second), True, True, (5.0, 0.25)) for second in range(13)]
    assert not stuck(_seen(*still[:10]))
    assert stuck(_seen(*still[:11])) == "it hangs: it answers, but has made no step for 10 s with requests in it"
    assert not stuck(_seen(*still), allowed_s=4.0)


def test_one_that_stands_still_before_its_first_request_has_its_time_from_then_on() -> None:
    idle = [(float(second), True, False, (5.0,)) for second in range(60)]
    busy = [(float(second), True, True, (5.0,)) for second in range(60, 71)]
    assert not stuck(_seen(*idle, *busy[:9]))
    assert stuck(_seen(*idle, *busy))


def test_whoever_did_not_look_has_seen_nothing() -> None:
    looks = [(0.0, True, True, (5.0,)), (1.0, True, True, (5.0,)), (1.0 + GAP_S + 1, False, True, (5.0,))]
    assert not silence(_seen(*looks)) and not stuck(_seen(*looks))


LOOKS = st.lists(st.tuples(st.floats(0.1, GAP_S - 0.1), st.booleans(), st.booleans(), st.integers(0, 2)), min_size=1, max_size=60)


@given(LOOKS)
def test_no_engine_is_taken_for_hung_before_its_time(gaps: list[tuple[float, bool, bool, int]]) -> None:
    """Whatever is seen: silence needs so long without any answer, and standing still so long with work and the same figures."""
    pulse, now_s, answered_s, moved_s, marks = None, 0.0, 0.0, 0.0, None
    for gap_s, answered, busy, mark in gaps:
        now_s += gap_s
        first = pulse is None
        pulse = look(pulse, now_s=now_s, answered=answered, busy=busy, marks=(float(mark),))
        if answered or first:
            answered_s = now_s
        if first or (answered and (not busy or mark != marks)):
            moved_s = now_s
        if answered or first:
            marks = mark
        assert bool(silence(pulse)) <= (now_s - answered_s >= SILENT_S)
        assert bool(stuck(pulse)) <= (now_s - moved_s >= STUCK_S)


@given(LOOKS)
def test_an_idle_engine_and_one_that_moves_are_never_stuck(gaps: list[tuple[float, bool, bool, int]]) -> None:
    pulse, now_s = None, 0.0
    for step, (gap_s, answered, busy, _) in enumerate(gaps):
        now_s += gap_s
        pulse = look(pulse, now_s=now_s, answered=True, busy=busy, marks=(float(step),))
        assert not stuck(pulse) and not silence(pulse)
        idle = look(pulse, now_s=now_s + STUCK_S, answered=answered, busy=False, marks=(float(step),))
        assert not stuck(idle)


@given(LOOKS)
def test_an_engine_that_tells_no_steps_is_never_stuck(gaps: list[tuple[float, bool, bool, int]]) -> None:
    pulse, now_s = None, 0.0
    for gap_s, _, _, _ in gaps:
        now_s += gap_s
        pulse = look(pulse, now_s=now_s, answered=True, busy=True)
        assert not stuck(pulse)
