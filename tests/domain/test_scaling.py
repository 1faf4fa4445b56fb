"""The laws of the scaling policy, each held against any traffic."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import exp, isclose, log, nan

from hypothesis import given, settings
from hypothesis import strategies as st

from fleets.domain.scaling.drained import LEASE_S, SCALE_IN_DEADLINE_S, SETTLE_S, finished
from fleets.domain.scaling.need import HOLD_S, MARGIN, Need, forecast, next_peak
from fleets.domain.scaling.policy import STALE_S, TURN_S, decide
from fleets.domain.scaling.shape import choose, gpus_of
from fleets.domain.scaling.types import Bounds, Decision, Knob, Memory, Plant, Signals
from fleets.domain.types import Role

PLANT = Plant(
    bounds={Knob.UNITS: Bounds(1, 3), Knob.PREFILL: Bounds(1, 6), Knob.DECODE: Bounds(1, 6)},
    gpus={Knob.PREFILL: 4, Knob.DECODE: 8},
    budget=40,
    ttft_limit_s=2.0,
    itl_limit_s=0.05,
    prefill_tokens_per_s=10_000.0,
    decode_sequences=100.0,
    bring_up_s=60.0,
    local_prefill_below=1000,
    local_prefill_most=8000,
)
EVERY_S = 5.0
maybe = st.one_of(st.none(), st.just(nan), st.floats(0, 1e6))


@st.composite
def loads(draw: st.DrawFn) -> dict[str, object]:
    """What one look may see: anything, or nothing."""
    latency = st.one_of(st.none(), st.just(nan), st.floats(0, 60))
    return {
        "age_s": draw(st.one_of(st.none(), st.just(1.0), st.just(1.0), st.just(1.0), st.floats(0, 100))),
        "ttft_p99_s": draw(latency),
        "queue_p99_s": draw(latency),
        "itl_p99_s": draw(st.one_of(st.none(), st.floats(0, 1))),
        "prefill_share": draw(st.one_of(st.none(), st.floats(0, 1))),
        "prompts_per_s": draw(st.one_of(st.none(), st.floats(0, 100))),
        "prompt_tokens_per_s": draw(maybe),
        "burst_tokens_per_s": draw(maybe),
        "prefilled_tokens_per_s": draw(maybe),
        "prefill_queue": draw(st.one_of(st.none(), st.integers(0, 500))),
        "sequences": draw(st.one_of(st.none(), st.floats(0, 5000))),
        "kv_use": draw(st.one_of(st.none(), st.just(nan), st.floats(0, 1))),
    }


def signals(at_s: float, counts: dict[Knob, int], **seen: object) -> Signals:
    units = counts[Knob.UNITS]
    ready = {knob: count * (1 if knob is Knob.UNITS else units) for knob, count in counts.items()}
    return Signals(at_s=at_s, counts=counts, ready=ready, **{"age_s": 1.0, **seen})  # type: ignore[arg-type]  # any of its fields


class Run:
    """Look after look; whatever is decided is in force at the next one."""

    def __init__(self, plant: Plant = PLANT, **counts: int) -> None:
        self.plant, self.memory, self.at_s = plant, Memory(), 0.0
        self.counts = {Knob(name): count for name, count in {"units": 1, "prefill": 1, "decode": 1, **counts}.items()}
        self.moves: list[tuple[float, Knob, int]] = []

    def look(self, **seen: object) -> Decision:
        self.at_s += EVERY_S
        decision = decide(self.plant, signals(self.at_s, dict(self.counts), **seen), self.memory)
        self.moves += [(self.at_s, knob, after - before) for knob, (before, after) in decision.moves(self.counts).items()]
        self.counts, self.memory = dict(decision.counts), decision.memory
        return decision

    def steady(self, seconds: float, **seen: object) -> Decision:
        for _ in range(int(seconds / EVERY_S)):
            decision = self.look(**{"ttft_p99_s": 0.3, "itl_p99_s": 0.01, "prefill_queue": 0, "kv_use": 0.1, **seen})
        return decision


CALM = {"prompts_per_s": 1.0, "prompt_tokens_per_s": 2000.0, "burst_tokens_per_s": 2000.0, "sequences": 5.0}
BUSY = {"prompts_per_s": 15.0, "prompt_tokens_per_s": 30_000.0, "burst_tokens_per_s": 30_000.0, "sequences": 5.0}


@settings(max_examples=60, deadline=None)
@given(st.lists(loads(), min_size=1, max_size=150))
def test_any_traffic_stays_inside_ranges_and_budget_and_turns_at_most_once_in_five_minutes(seen: list[dict[str, object]]) -> None:
    run = Run()
    for one in seen:
        before = dict(run.counts)
        decision = run.look(**one)
        assert all(PLANT.bounds[knob].clamp(count) == count >= 1 for knob, count in decision.counts.items())
        assert gpus_of(PLANT, decision.counts) <= PLANT.budget
        assert PLANT.local_prefill_below // 4 <= decision.local_prefill_below <= PLANT.local_prefill_most
        for knob, (was, now) in decision.moves(before).items():
            assert f"{knob.value} {was} -> {now}" in decision.sentence and any(char.isdigit() for char in decision.sentence)
    for knob in Knob:
        ways = [(at_s, move > 0) for at_s, moved, move in run.moves if moved is knob]
        turns = [at_s for (_, was), (at_s, is_up) in pairwise(ways) if was != is_up]
        assert all(later - earlier >= TURN_S for earlier, later in pairwise(turns))


@given(loads(), st.one_of(st.none(), st.floats(STALE_S + 0.1, 1e6)))
def test_without_fresh_figures_nothing_moves_and_nothing_is_learned(seen: dict[str, object], age_s: float | None) -> None:
    run = Run(prefill=3)
    run.steady(60, **BUSY)
    memory, counts = run.memory, dict(run.counts)
    decision = run.look(**{**seen, "age_s": age_s})
    assert decision.counts == counts and decision.memory == memory and "nothing is changed" in decision.sentence


def test_figures_that_come_back_are_acted_on_at_once() -> None:
    run = Run()
    run.steady(60, **CALM)
    for _ in range(200):
        run.look(age_s=None)
    run.steady(10, **BUSY)
    assert run.counts[Knob.PREFILL] > 1


def test_a_figure_that_is_never_told_holds_its_own_role_only() -> None:
    run = Run(prefill=4, decode=2)
    run.steady(2 * HOLD_S, **{**CALM, "sequences": None, "kv_use": nan, "itl_p99_s": None})
    assert run.counts[Knob.PREFILL] == 1 and run.counts[Knob.DECODE] == 2


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 200), st.integers(0, 200))
def test_both_halves_are_chosen_together_and_the_scarcer_role_is_served_first(p: int, d: int, need_p: int, need_d: int) -> None:
    plant = replace(PLANT, bounds={**PLANT.bounds, Knob.UNITS: Bounds(1, 1)})
    needs = {Knob.PREFILL: Need(max(1, need_p), 0.0, None, ""), Knob.DECODE: Need(max(1, need_d), 0.0, None, "")}
    counts = choose(plant, needs, 1)
    assert gpus_of(plant, counts) <= plant.budget
    other = {Knob.UNITS: 1, Knob.PREFILL: p, Knob.DECODE: d}
    if gpus_of(plant, other) <= plant.budget:
        cover = min(min(1.0, counts[role] / needs[role].replicas) for role in plant.roles)
        assert cover >= min(min(1.0, other[role] / needs[role].replicas) for role in plant.roles) - 1e-9


def test_gpus_go_from_decode_to_prefill_in_one_decision() -> None:
    run = Run(replace(PLANT, bounds={**PLANT.bounds, Knob.UNITS: Bounds(1, 1)}), decode=4)
    run.steady(HOLD_S + 60, **{**CALM, "sequences": 350.0})
    assert (run.counts[Knob.PREFILL], run.counts[Knob.DECODE]) == (1, 4)
    run.steady(EVERY_S, **{**BUSY, "sequences": 350.0})
    assert (run.counts[Knob.PREFILL], run.counts[Knob.DECODE]) == (4, 3), "forty GPUs, and both have most of what they need"
    assert [(at_s, knob) for at_s, knob, _ in run.moves][-2:] == [(run.at_s, Knob.PREFILL), (run.at_s, Knob.DECODE)]


def test_units_come_when_a_unit_can_grow_no_more_and_go_with_a_margin() -> None:
    run = Run()
    run.steady(60, **{**BUSY, "burst_tokens_per_s": 150_000.0})
    assert run.counts[Knob.UNITS] > 1
    run.steady(2 * HOLD_S, **CALM)
    assert run.counts[Knob.UNITS] == 1


def test_the_local_limit_moves_before_replicas_do_and_returns() -> None:
    run = Run(prefill=2)
    run.steady(30, **CALM)
    decision = run.look(ttft_p99_s=2.5, queue_p99_s=1.5, itl_p99_s=0.01, prefill_queue=40, kv_use=0.2, **CALM)
    assert decision.local_prefill_below == 2000 and run.counts[Knob.PREFILL] == 2
    for _ in range(5):
        decision = run.look(ttft_p99_s=2.5, queue_p99_s=1.5, itl_p99_s=0.01, prefill_queue=40, kv_use=0.2, **CALM)
    assert decision.local_prefill_below == PLANT.local_prefill_most and run.counts[Knob.PREFILL] > 2
    assert run.steady(300, **CALM).local_prefill_below == PLANT.local_prefill_below


def test_replicas_that_are_coming_are_counted() -> None:
    memory = Run()
    memory.steady(30, **CALM)
    pressed = {"ttft_p99_s": 3.0, "queue_p99_s": 2.0, "itl_p99_s": 0.045, "prefill_queue": 1, "kv_use": 0.9, **CALM}
    counts = {Knob.UNITS: 1, Knob.PREFILL: 2, Knob.DECODE: 1}
    coming = replace(signals(40.0, counts, **pressed), ready={Knob.UNITS: 1, Knob.PREFILL: 1, Knob.DECODE: 1})
    assert decide(PLANT, coming, memory.memory).counts[Knob.PREFILL] == 2
    assert decide(PLANT, signals(40.0, counts, **pressed), memory.memory).counts[Knob.PREFILL] > 2


def test_nothing_falls_before_its_peaks_are_over_nor_before_ten_minutes_were_watched() -> None:
    run = Run(prefill=4)
    run.steady(HOLD_S - 90, **CALM)
    assert run.counts[Knob.PREFILL] == 4
    run.look(ttft_p99_s=0.3, itl_p99_s=0.01, prefill_queue=0, kv_use=0.1, **BUSY)
    run.steady(HOLD_S - 60, **CALM)
    assert run.counts[Knob.PREFILL] >= 4, "one burst is remembered for ten minutes"
    run.steady(300, **CALM)
    assert run.counts[Knob.PREFILL] == 1


def test_a_number_that_a_person_holds_stays() -> None:
    held = replace(PLANT, bounds={**PLANT.bounds, Knob.PREFILL: Bounds(2, 2)})
    run = Run(held, prefill=2)
    run.steady(120, **{**BUSY, "ttft_p99_s": 9.0, "prefill_queue": 90})
    assert run.counts[Knob.PREFILL] == 2


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=20), st.floats(0, 600))
def test_a_forecast_is_at_least_the_highest_peak_and_at_most_that_or_twice_the_newest(values: list[float], ahead_s: float) -> None:
    points = [(30.0 * index, value) for index, value in enumerate(values)]
    found = forecast(points, points[-1][0], ahead_s)
    assert max(values) <= found <= max(*values, 2 * values[-1]) if len(values) > 1 else found == values[0]
    assert next_peak(values) >= max(values)


def test_a_steady_rise_is_carried_forward_and_steady_traffic_costs_no_margin() -> None:
    rise = [(30.0 * index, 1000.0 * (index + 4)) for index in range(6)]
    assert isclose(forecast(rise, 150.0, 60.0), 11_000.0, rel_tol=1e-6)
    assert next_peak([500.0] * 20) == 500.0 and isclose(1 / (1 + exp(MARGIN)), 0.01) and isclose(MARGIN, log(99))


@given(st.sampled_from(list(Role)), st.floats(0, 4 * SCALE_IN_DEADLINE_S), st.floats(0, 5), st.floats(0, 5), st.floats(0, 1))
def test_a_replica_goes_only_with_nothing_in_hand(role: Role, waited_s: float, running: float, waiting: float, kv_use: float) -> None:
    gone = finished(role, {"running": running, "waiting": waiting, "kv_use": kv_use}, waited_s=waited_s)
    assert not gone or (waited_s >= SETTLE_S and running + waiting == 0)
    if gone and role is Role.PREFILL:
        assert kv_use == 0 or waited_s >= SETTLE_S + LEASE_S
    assert not finished(role, {}, waited_s=waited_s)
