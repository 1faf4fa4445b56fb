"""The simulator against sums done by hand, step by step, and what must hold for any traffic."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleets.domain.hardware import GPUS
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.simulator.arrivals import Process, at_rate, drawn, fitted, hit_ratio
from fleets.domain.simulator.run import simulate
from fleets.domain.simulator.types import Arrival, Failure, Limits, PoolShape, RouterShape, Run, StageShape
from fleets.domain.timing import Calibration, StepTimes, decode_step_s, kv_transfer_s, mixed_step_s, prefill_s
from fleets.domain.types import Role
from tests.domain.test_timing import DEEPSEEK_V3, DS_FLASH, LLAMA_70B

H200 = GPUS["H200"]
NO_HOP = Run(router=RouterShape(hop_s=0.0))


def aggregated(replicas: int = 1, **fields: int) -> StageShape:
    return StageShape(LLAMA_70B, H200, 1, (PoolShape(Role.AGGREGATED, replicas, 8, **fields),))


def apart(prefills: int = 1, decodes: int = 1, units: int = 1, **fields: int) -> StageShape:
    pools = (PoolShape(Role.PREFILL, prefills, 4, max_batched_tokens=16_384), PoolShape(Role.DECODE, decodes, 8, **fields))
    return StageShape(LLAMA_70B, H200, units, pools)


@given(st.integers(1, 600), st.integers(0, 10**6), st.integers(1, 9000), st.integers(0, 100_000), st.sampled_from([1, 4, 8, 64]))
def test_step_times_are_the_timing_models_own(batch: int, context: int, new: int, before: int, gpus: int) -> None:
    for shape in (LLAMA_70B, DS_FLASH, DEEPSEEK_V3):
        steps = StepTimes(shape, H200, gpus)
        assert steps.decode_s(batch, context) == pytest.approx(decode_step_s(shape, H200, gpus, batch, context))
        assert steps.alone_s + steps.prefill_part_s(new, before) == pytest.approx(prefill_s(shape, H200, gpus, new, before))
        mixed = steps.decode_s(batch, context) + steps.prefill_part_s(new, before)
        assert mixed == pytest.approx(mixed_step_s(shape, H200, gpus, batch, context, new, before))


def test_scale_stretches_every_step_alike() -> None:
    plain, slow = StepTimes(DEEPSEEK_V3, H200, 16), StepTimes(DEEPSEEK_V3, H200, 16, Calibration(scale=1.25))
    assert slow.decode_s(64, 90_000) == pytest.approx(1.25 * plain.decode_s(64, 90_000))
    assert slow.prefill_s(20_000, 512) == pytest.approx(1.25 * plain.prefill_s(20_000, 512))


def test_one_request_alone_takes_its_prefill_and_its_steps() -> None:
    result = simulate(aggregated(), [Arrival(1.0, 1000, 101)], NO_HOP)
    first_s = prefill_s(LLAMA_70B, H200, 8, 1000, 0)
    gaps_s = sum(decode_step_s(LLAMA_70B, H200, 8, 1, 1001 + k) for k in range(100))
    assert result.ttft.mean_s == pytest.approx(first_s)
    assert result.e2e.mean_s == pytest.approx(first_s + gaps_s)
    assert (result.itl.n, result.tpot.n) == (100, 1)
    assert result.tpot.mean_s == pytest.approx(gaps_s / 100)


def test_one_remote_request_takes_prefill_transfer_and_a_first_step() -> None:
    result = simulate(apart(), [Arrival(0.0, 5000, 50)], NO_HOP)
    parts = prefill_s(LLAMA_70B, H200, 4, 5000, 0), kv_transfer_s(5000 * 327_680, H200, True), decode_step_s(LLAMA_70B, H200, 8, 1, 5000)
    assert result.ttft.mean_s == pytest.approx(sum(parts))
    assert [result.phases_mean_s[name] for name in ("prefill", "kv", "first-step")] == pytest.approx(list(parts))
    assert result.reasons == {"remote": 1}
    assert result.kv_bytes_moved == 5000 * 327_680


def test_a_newcomer_waits_for_the_step_under_way_and_disturbs_it_by_its_prefill() -> None:
    step_s = decode_step_s(LLAMA_70B, H200, 8, 1, 1001)
    first_s = prefill_s(LLAMA_70B, H200, 8, 1000, 0)
    result = simulate(aggregated(), [Arrival(0.0, 1000, 200), Arrival(first_s + step_s / 2, 2000, 2)], NO_HOP)
    mixed_s = mixed_step_s(LLAMA_70B, H200, 8, 1, 1002, 2000, 0)
    assert (result.ttft.mean_s or 0) * 2 == pytest.approx(first_s + step_s / 2 + mixed_s)


@dataclass
class Walked:
    """One request of `by_steps`."""

    arrival: Arrival
    left: int  # tokens to prefill
    said: int = 1


def by_steps(arrivals: list[Arrival], budget: int) -> tuple[list[float], float]:
    """First-token times and the end, by walking every single step of one aggregated replica."""
    waiting = [Walked(arrival, arrival.input_tokens) for arrival in arrivals]
    prefilling: list[Walked] = []
    running: list[Walked] = []
    now, firsts = 0.0, []
    while waiting or prefilling or running:
        if not prefilling and not running:
            now = max(now, waiting[0].arrival.at_s)
        ahead = sum(one.left for one in prefilling)
        while waiting and waiting[0].arrival.at_s <= now and ahead < budget:
            ahead += waiting[0].left
            prefilling.append(waiting.pop(0))
        room, new, pairs = budget - len(running), 0, 0.0
        chunks: list[tuple[Walked, int]] = []
        for one in prefilling:
            tokens = min(room, one.left)
            if tokens <= 0:
                break
            chunks.append((one, tokens))
            room, new = room - tokens, new + tokens
            pairs += tokens * (one.arrival.input_tokens - one.left + tokens / 2)
        steps = StepTimes(LLAMA_70B, H200, 8)
        context = sum(one.arrival.input_tokens + one.said for one in running)
        now += steps.decode_s(len(running), context) if running else steps.alone_s
        now += steps.prefill_part_s(new, max(0.0, pairs / new - new / 2)) if new else 0.0
        for one in running:
            one.said += 1
        for one, tokens in chunks:
            one.left -= tokens
            if not one.left:
                firsts.append(now - one.arrival.at_s)
                running.append(one)
        running = [one for one in running if one.said < one.arrival.output_tokens]
        prefilling = [one for one in prefilling if one.left]
    return firsts, now


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([512, 2048, 8192]))
def test_epochs_give_what_single_steps_give(seed: int, count: int, budget: int) -> None:
    process = Process(4.0, 1500, 60, input_spread=0.8, output_spread=0.9)
    arrivals = list(drawn(process, count, random.Random(seed)))
    result = simulate(aggregated(max_batched_tokens=budget), arrivals, NO_HOP)
    firsts, end_s = by_steps(arrivals, budget)
    assert result.completed == count
    assert result.ttft.mean_s == pytest.approx(sum(firsts) / count, rel=1e-6)
    assert result.span_s == pytest.approx(end_s, rel=1e-6)
    assert result.itl.n == sum(arrival.output_tokens - 1 for arrival in arrivals)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(1, 60), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_every_request_ends_and_every_token_is_counted(seed: int, rate: float, prefills: int, decodes: int, units: int) -> None:
    process = Process(rate, 2500, 80, gap_spread=2.0, input_spread=1.2, output_spread=1.0, prefix_hit=0.3)
    arrivals = list(drawn(process, 300, random.Random(seed)))
    result = simulate(apart(prefills, decodes, units, kv_tokens=60_000), arrivals)
    assert result.completed + result.rejected + result.failed == 300
    assert result.failed == 0
    if not result.rejected:
        assert result.output_tokens == sum(arrival.output_tokens for arrival in arrivals)
    assert all(use.kv_ratio_max <= 1.3 for use in result.pools)


def test_conditional_disaggregation_is_the_routers_own() -> None:
    arrivals = [Arrival(0.0, 300, 5), Arrival(5.0, 20_000, 5), Arrival(10.0, 20_000, 5, (), 19_960)]
    assert simulate(apart(), arrivals).reasons == {"short": 1, "remote": 1, "cached": 1}


def test_a_full_prefill_queue_is_shifted_to_decode_then_refused() -> None:
    crowd = [Arrival(index * 1e-4, 4000, 2) for index in range(900)]
    shape = replace(apart(), conditional=ConditionalPolicy(local_prefill_below=1000, prefill_queue_above=8))
    result = simulate(shape, crowd, Run(router=RouterShape(queue_limit=64, queue_deadline_s=2.0)))
    assert result.reasons["queue-full-local"] > 0
    assert result.rejected > 0
    assert not result.meets(Limits())


def test_a_prefix_that_is_held_is_not_computed_again() -> None:
    shared = tuple(range(16))
    arrivals = [Arrival(float(index), 8192 + 512, 4, (*shared, 100 + index)) for index in range(20)]
    result = simulate(aggregated(), arrivals)
    assert result.cached_ratio == pytest.approx(19 * 8192 / (20 * 8704), rel=0.01)
    assert hit_ratio(arrivals) == pytest.approx(19 * 8192 / (20 * 8704), rel=0.01)
    small = simulate(aggregated(kv_tokens=9000), [replace_blocks(arrival) for arrival in arrivals])
    assert small.cached_ratio == 0.0


def replace_blocks(arrival: Arrival) -> Arrival:
    """The same prompt behind a first block of its own."""
    return Arrival(arrival.at_s, arrival.input_tokens, arrival.output_tokens, (10_000 + int(arrival.at_s), *arrival.blocks))


def test_without_room_for_kv_the_youngest_is_set_back_and_all_still_end() -> None:
    crowd = [Arrival(index * 0.01, 1000, 400) for index in range(40)]
    roomy, tight = simulate(aggregated(), crowd), simulate(aggregated(kv_tokens=16_000), crowd)
    assert roomy.pools[0].preemptions == 0 < tight.pools[0].preemptions
    assert tight.completed == 40
    assert tight.output_tokens == 40 * 400
    assert (tight.ttft.p99_s or 0) > (roomy.ttft.p99_s or 0)


def test_a_dead_prefill_replica_is_gone_around_and_a_dead_decode_cuts_what_it_was_saying() -> None:
    arrivals = list(drawn(Process(3, 2000, 500), 100, random.Random(3)))
    prefill_dies = simulate(apart(2), arrivals, Run(failures=[Failure(4.0, 0, Role.PREFILL, 0, 5.0)]))
    assert prefill_dies.completed == 100
    decode_dies = simulate(apart(1, 2), arrivals, Run(failures=[Failure(4.0, 0, Role.DECODE, 0, 5.0)]))
    assert 0 < decode_dies.failed < 20
    assert decode_dies.completed + decode_dies.failed == 100
    all_die = simulate(aggregated(), arrivals, Run(failures=[Failure(4.0, 0, Role.AGGREGATED, 0, 5.0)]))
    assert all_die.failed > 10
    assert all_die.completed + all_die.failed == 100


def test_a_warm_start_is_the_steady_state_from_the_beginning() -> None:
    process = Process(6, 2000, 300)
    long = simulate(apart(2), drawn(process, 3000, random.Random(1)))
    batch = round(long.pools[1].batch_mean)
    warm = simulate(apart(2), drawn(process, 300, random.Random(2)), Run(warm_batch=batch, warm_input_tokens=2000, warm_output_tokens=300))
    assert warm.itl.p50_s == pytest.approx(long.itl.p50_s, rel=0.05)
    assert warm.completed == warm.requests == 300


def test_the_same_input_gives_the_same_answer() -> None:
    first, second = (simulate(apart(2, 2, 2), drawn(Process(30, 2000, 50), 400, random.Random(9))) for _ in range(2))
    assert first == second


def test_a_fitted_process_has_the_traces_figures() -> None:
    truth = Process(12.0, 900, 150, gap_spread=2.0, input_spread=0.7, output_spread=1.1)
    found = fitted(list(drawn(truth, 20_000, random.Random(4))))
    assert found.rate_per_s == pytest.approx(12.0, rel=0.1)
    assert found.gap_spread == pytest.approx(2.0, rel=0.1)
    assert found.input_tokens == pytest.approx(900, rel=0.05)
    assert found.output_spread == pytest.approx(1.1, rel=0.15)


def test_a_trace_can_be_played_at_another_rate() -> None:
    faster = at_rate([Arrival(float(index), 100, 10) for index in range(101)], 50.0)
    assert faster[-1].at_s == pytest.approx(2.0)
