"""Sizing and advice: known sums, the product guide's cases, and what must never come out."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denvweb.core.errors import InvalidError
from fleets.domain.hardware import GPUS
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.simulator.arrivals import Process, drawn
from fleets.domain.simulator.types import Arrival, Limits, PoolShape, StageShape
from fleets.domain.sizing import advise as advice
from fleets.domain.sizing.advise import advise, conditions, volume_needed
from fleets.domain.sizing.cases import DEEPSEEK_DAY, LONG_OUTPUTS, LONG_PROMPTS, SHARED_PREFIXES
from fleets.domain.sizing.forecast import overrun
from fleets.domain.sizing.load import load_of
from fleets.domain.sizing.queueing import erlang_c, servers_for, wait_quantile_s
from fleets.domain.sizing.shapes import Apart, packed, proposals_apart
from fleets.domain.sizing.size import size, steady_apart
from fleets.domain.sizing.threshold import bearable, break_even_tokens
from fleets.domain.sizing.types import Need, RoleBounds, Serving, Sizing
from fleets.domain.timing import StepTimes
from fleets.domain.types import Role
from tests.domain.test_timing import DS_FLASH, LLAMA_70B

BOUNDS = {Role.PREFILL: RoleBounds(2, 8, 16_384), Role.DECODE: RoleBounds(2, 64), Role.AGGREGATED: RoleBounds(2, 64)}
FLASH = Serving(replace(DS_FLASH, prefill_weight_ratio=1.0), GPUS["GB200"], BOUNDS)
LLAMA = Serving(LLAMA_70B, GPUS["H200"], BOUNDS)
LIMITS = Limits(ttft_s=2.0, itl_s=0.05)


@cache
def sized(process: Process, *, rate: float = 60.0, aggregated: bool = False) -> Sizing:
    return size(FLASH, Need(replace(process, rate_per_s=rate), LIMITS, requests=1500), random.Random, aggregated=aggregated)


def gpus_of(sizing: Sizing, role: Role) -> int:
    return sum(pool.gpus * pool.replicas * sizing.shape.units for pool in sizing.pools if pool.role is role)


# ---- queueing ----


def test_erlang_c_is_the_books() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(10, 8.0) == pytest.approx(0.4092, abs=1e-4)
    assert erlang_c(3, 3.0) == 1.0


def test_the_wait_for_one_server_is_exponential() -> None:
    # M/M/1: P(wait > t) = rho * exp(-(mu - lambda) t)
    wait_s = wait_quantile_s(1, 0.8, 1.0, q=0.99, gap_spread=1, service_spread=1)
    assert wait_s == pytest.approx(21.91, abs=0.01)
    assert wait_quantile_s(1, 1.0, 1.0, q=0.99, gap_spread=1, service_spread=1) == float("inf")


@given(st.floats(0.1, 500), st.floats(0.001, 3), st.floats(0.01, 5), st.floats(0, 4))
def test_one_server_fewer_would_not_do(rate: float, service_s: float, wait_s: float, spread: float) -> None:
    servers = servers_for(rate, service_s, wait_s=wait_s, q=0.99, gap_spread=spread, service_spread=0.5)
    assert rate * service_s <= 0.9 * servers
    if servers > 1:
        fewer_s = wait_quantile_s(servers - 1, rate, service_s, q=0.99, gap_spread=spread, service_spread=0.5)
        assert fewer_s > wait_s or rate * service_s > 0.9 * (servers - 1)


# ---- published ----


def test_the_published_day_of_deepseek_comes_out() -> None:
    """608B tokens in at 73.7k/s a node, 168B out at 14.8k/s a node: 226.75 nodes were reported on average, P to D 1 : 1.38."""
    assert DEEPSEEK_DAY.prefill_nodes == pytest.approx(95.5, abs=0.05)
    assert DEEPSEEK_DAY.decode_nodes == pytest.approx(131.4, abs=0.05)
    assert DEEPSEEK_DAY.nodes == pytest.approx(226.75, rel=0.001)
    assert DEEPSEEK_DAY.decode_per_prefill == pytest.approx(1.38, abs=0.005)


# ---- the product guide's three cases ----


def test_long_prompts_take_more_prefill_long_outputs_little_and_shared_prefixes_fewer() -> None:
    prompts, outputs, shared = (sized(case) for case in (LONG_PROMPTS, LONG_OUTPUTS, SHARED_PREFIXES))
    assert gpus_of(prompts, Role.PREFILL) > gpus_of(prompts, Role.DECODE)
    assert gpus_of(outputs, Role.PREFILL) < gpus_of(outputs, Role.DECODE)
    assert gpus_of(shared, Role.PREFILL) < gpus_of(prompts, Role.PREFILL)
    assert prompts.bottleneck is Role.PREFILL
    assert outputs.bottleneck is Role.DECODE
    assert "prefill carries" in prompts.why and "the load is 60.0" in prompts.why


@pytest.mark.parametrize("case", [LONG_PROMPTS, LONG_OUTPUTS, SHARED_PREFIXES])
@pytest.mark.parametrize("aggregated", [False, True])
def test_an_answer_keeps_its_limits_fits_its_domain_and_has_intervals_around_its_figures(case: Process, aggregated: bool) -> None:
    found = sized(case, aggregated=aggregated)
    seen = found.forecast
    assert seen.meets
    assert seen.ttft_p99.value <= 2.0 and seen.itl_p99.value <= 0.05
    for span in (seen.ttft_p50, seen.ttft_p99, seen.itl_p50, seen.itl_p99):
        assert 0 < span.low <= span.value <= span.high
    assert found.gpus == sum(gpus_of(found, role) for role in Role)
    assert found.gpus // found.shape.units <= 72
    assert seen.goodput_per_gpu_s == pytest.approx(60.0 * seen.goodput_ratio / found.gpus)


def test_what_is_sized_keeps_up_however_long_the_traffic_lasts() -> None:
    """A few thousand requests are over in seconds at such a rate: a queue that grows for ever would still be short."""
    need = Need(replace(LONG_PROMPTS, rate_per_s=400.0), LIMITS, requests=600)
    found = size(FLASH, need, random.Random)
    load = load_of(need, ConditionalPolicy(), random.Random)
    assert overrun(load, found.shape, steady_apart(FLASH, load, found.shape)) is None
    assert all(pool.load_ratio <= 1.0 for pool in found.pools if pool.role is Role.DECODE)
    prefill = found.shape.pools[0]
    fewer = replace(found.shape, units=1, pools=(replace(prefill, replicas=2), found.shape.pools[1]))
    assert overrun(load, fewer, steady_apart(FLASH, load, fewer)) is Role.PREFILL


def test_twice_the_load_never_takes_fewer_gpus() -> None:
    gpus = [sized(LONG_PROMPTS, rate=rate).gpus for rate in (5, 60, 120)]
    assert gpus == sorted(gpus)
    assert gpus[-1] > gpus[0]


def test_cost_and_kv_bandwidth_follow_from_the_shape() -> None:
    found = size(FLASH, Need(LONG_PROMPTS, LIMITS), random.Random, gpu_price=4.0)
    assert found.cost is not None and found.kv is not None
    assert found.cost.per_hour == 4.0 * found.gpus
    out_per_hour = 20.0 * found.forecast.goodput_ratio * 200 * 3600
    assert found.cost.per_million_output_tokens == pytest.approx(found.cost.per_hour / out_per_hour * 1e6)
    assert found.kv.mean_bytes_per_s < found.kv.burst_bytes_per_s < found.kv.fabric_bytes_per_s
    assert found.kv.fits_fabric


def test_units_are_packed_into_domains() -> None:
    load = load_of(Need(LONG_PROMPTS, LIMITS), ConditionalPolicy(), random.Random)
    proposal = replace(proposals_apart(FLASH, load, LIMITS)[0], prefill_gpus=8, decode_gpus=32, prefills=20, decodes=3)
    pack = packed(FLASH, proposal)
    assert (pack.units, pack.prefills, pack.decodes) == (4, 5, 1)
    assert pack.prefills * 8 + pack.decodes * 32 <= 72
    assert isinstance(proposal, Apart)


# ---- what cannot be ----


def test_limits_under_what_one_request_takes_are_refused_with_the_figure() -> None:
    with pytest.raises(InvalidError, match=r"ITL p99 2 ms cannot be kept: one sequence alone takes \d+ ms a token on GB200"):
        size(FLASH, Need(LONG_PROMPTS, Limits(2.0, 0.002)), random.Random)
    with pytest.raises(InvalidError, match=r"TTFT p99 5 ms cannot be kept: a prompt of [\d,]+ tokens"):
        size(FLASH, Need(LONG_PROMPTS, Limits(0.005, 0.05)), random.Random)


def test_an_engine_that_cannot_disaggregate_is_sized_as_aggregated_only() -> None:
    serving = replace(FLASH, cannot_disaggregate="recipe tiny/vllm-cpu@1 has no prefill role")
    with pytest.raises(InvalidError, match="has no prefill role"):
        size(serving, Need(LONG_PROMPTS, LIMITS), random.Random)
    assert size(serving, Need(LONG_PROMPTS, LIMITS), random.Random, aggregated=True).forecast.meets


# ---- threshold ----


def shape_with(decode_gpus: int) -> StageShape:
    pools = (PoolShape(Role.PREFILL, 1, 4), PoolShape(Role.DECODE, 1, decode_gpus))
    return StageShape(DS_FLASH, GPUS["GB200"], 1, pools)


def test_the_break_even_falls_with_the_batch_and_rises_with_the_queue() -> None:
    def at(batch: float, queue_s: float, limit_s: float | None = None) -> int:
        return break_even_tokens(shape_with(16), batch=batch, context_tokens=4000, queue_s=queue_s, itl_limit_s=limit_s)

    assert at(1, 0.0) > at(8, 0.0) > at(200, 0.0)
    assert at(8, 1.0) > at(8, 0.0)
    assert at(8, 10.0, limit_s=0.04) < at(8, 10.0)


def test_decode_prefills_locally_only_what_no_running_sequence_feels() -> None:
    """1,000 tokens of a dense 70B take two H200 over 100 ms: with such a threshold decode carried half of what it can."""
    below = bearable(LLAMA, LIMITS).conditional.local_prefill_below
    assert 50 <= below < 250
    assert StepTimes(LLAMA.model, LLAMA.gpu, 2).prefill_part_s(below, 0) <= 0.025
    assert bearable(FLASH, LIMITS).conditional == FLASH.conditional
    assert bearable(LLAMA, Limits(2.0, None)) == LLAMA


# ---- a trace ----


def test_a_trace_is_played_as_it_is() -> None:
    calm = list(drawn(Process(20, 3000, 100), 1500, random.Random(5)))
    burst = [Arrival(40.0 + index * 1e-3, 3000, 100) for index in range(300)]
    bursty = sorted(calm + burst, key=lambda arrival: arrival.at_s)
    process = Process(20, 3000, 100)
    found = [size(FLASH, Need(process, LIMITS, arrivals), random.Random) for arrivals in (calm, bursty)]
    assert all(one.forecast.meets for one in found)
    assert gpus_of(found[1], Role.PREFILL) > gpus_of(found[0], Role.PREFILL)


# ---- advice ----


def test_volume_needed_falls_with_the_model() -> None:
    assert volume_needed(70e9) == 1e9
    assert volume_needed(100e9) == 1e9
    assert volume_needed(671e9) == pytest.approx(1.49e8, rel=0.01)
    assert volume_needed(5e12) == 1e8


def test_each_condition_is_shown_with_its_number() -> None:
    need = Need(replace(LONG_OUTPUTS, rate_per_s=0.1), LIMITS)
    found = {one.name: one for one in conditions(LLAMA, need, load_of(need, ConditionalPolicy(), random.Random))}
    assert not any(found[name].holds for name in ("volume", "model-size", "traffic-shape"))
    assert found["engine"].holds
    assert "71B parameters of 100B" in found["model-size"].sentence
    assert found["volume"].value == pytest.approx(0.1 * 1800 * 86_400)


def test_prefill_heavy_traffic_of_a_large_model_is_computed_both_ways_on_the_same_gpus() -> None:
    found = advise(FLASH, Need(replace(LONG_PROMPTS, rate_per_s=40.0), LIMITS, requests=1000), random.Random, gpus=12)
    assert all(condition.holds for condition in found.conditions)
    assert {one.kind for one in found.contenders} == {"disaggregated", "aggregated"}
    assert all(one.shape.gpus <= found.gpus for one in found.contenders)
    best = max((one for one in found.contenders if one.meets), key=lambda one: one.capacity_per_s)
    assert found.winner == found.advice == best.kind


def test_short_prompts_are_not_worth_disaggregating() -> None:
    found = advise(FLASH, Need(LONG_OUTPUTS, LIMITS, requests=1000), random.Random, gpus=4)
    assert found.advice == "aggregated"
    assert "traffic-shape" in found.sentence


def test_a_shape_that_misses_a_limit_never_wins() -> None:
    found = advise(FLASH, Need(replace(LONG_PROMPTS, rate_per_s=200.0), LIMITS, requests=1000), random.Random, gpus=8)
    assert not any(one.meets for one in found.contenders)
    assert (found.winner, found.advice) == ("", "neither")
    one_fits = [replace(one, capacity_per_s=99.0) for one in found.contenders]
    assert advice._winner(one_fits) == ""


def test_an_engine_without_roles_is_named_as_the_reason() -> None:
    serving = replace(FLASH, cannot_disaggregate="sglang cannot hand over here")
    found = advise(serving, Need(LONG_PROMPTS, LIMITS, requests=1000), random.Random, gpus=16)
    assert found.absent == {"disaggregated": "sglang cannot hand over here"}
    assert found.advice == "aggregated"
