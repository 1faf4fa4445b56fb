"""Routing decisions: exact shares, sticky sessions, local or remote, and who gets a request."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.routing import (
    LOCAL_RISE_MAX,
    OVERTAKEN_MAX,
    ExactShares,
    Reason,
    decide,
    local_limit,
    next_in_line,
    pick_decode,
    pick_prefill,
    pick_unit,
    release_number,
    sticky_release,
)

POLICY = ConditionalPolicy(local_prefill_below=1000, prefill_queue_above=64)


@dataclass
class Replica:
    name: str
    running: int = 0
    tokens: int = 0
    kv_use: float | None = None
    used_seq: int = 0


@dataclass
class Unit:
    name: str
    load: float = 0.0
    used_seq: int = 0


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10_000), min_size=1), st.integers(1, 400))
def test_after_any_number_of_picks_each_count_is_within_one_of_its_share(weights: dict[str, int], picks: int) -> None:
    shares = ExactShares(weights)
    total = sum(weights.values())
    counts = dict.fromkeys(weights, 0)
    for number in range(1, picks + 1):
        name = shares.pick()
        if not total:
            assert name is None
            return
        assert name is not None and weights[name] > 0
        counts[name] += 1
        for other, weight in weights.items():
            assert abs(counts[other] - Fraction(number * weight, total)) < 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_shares_stay_exact_over_many_rounds(parts: list[int]) -> None:
    weights = {f"m@{index}": part for index, part in enumerate(parts)}
    shares = ExactShares(weights)
    counts = dict.fromkeys(weights, 0)
    for _ in range(3 * sum(parts)):
        counts[shares.pick() or ""] += 1
    assert counts == {name: 3 * part for name, part in weights.items()}


def test_a_tenth_is_every_tenth() -> None:
    shares = ExactShares({"m@1": 9000, "m@2": 1000})
    picks = [shares.pick() for _ in range(100)]
    assert all(picks[start : start + 10].count("m@2") == 1 for start in range(0, 100, 10))


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 9999), st.integers(0, 5000))
def test_growing_canary_only_gains_sessions(point: float, canary: int, more: int) -> None:
    grown = min(10_000, canary + more)
    before = sticky_release({"m@9": 10_000 - canary, "m@10": canary}, point)
    after = sticky_release({"m@9": 10_000 - grown, "m@10": grown}, point)
    assert before == after or (before, after) == ("m@9", "m@10")


def test_sticky_release_shares_and_ignores_weight_zero() -> None:
    weights = {"m@1": 7500, "m@2": 2500, "m@3": 0}
    got = [sticky_release(weights, index / 1000) for index in range(1000)]
    assert got.count("m@2") == 250 and got.count("m@1") == 750
    assert sticky_release({"m@1": 0}, 0.3) is None


def test_release_number() -> None:
    assert release_number("ds-flash@17") == 17
    assert release_number("odd") == 0


@pytest.mark.parametrize(
    ("prompt", "held", "remote", "reason"),
    [
        (40, 0, False, Reason.SHORT),
        (300, 0, False, Reason.SHORT),
        (20_000, 0, True, Reason.REMOTE),
        (20_000, 19_960, False, Reason.CACHED),
        (20_000, 19_700, False, Reason.CACHED),
        (40_000, 20_000, True, Reason.REMOTE),
        (1000, 0, True, Reason.REMOTE),
        (999, 0, False, Reason.SHORT),
    ],
)
def test_worked_cases(prompt: int, held: int, remote: bool, reason: Reason) -> None:
    decision = decide(POLICY, prompt_tokens=prompt, held_tokens=held, prefill_queue=0, decode_kv_use=0.2)
    assert (decision.remote, decision.reason) == (remote, reason)


def test_full_prefill_queue_raises_the_local_limit_while_decode_has_room() -> None:
    def at(queue: int, kv_use: float | None, prompt: int = 1500) -> Reason:
        return decide(POLICY, prompt_tokens=prompt, held_tokens=0, prefill_queue=queue, decode_kv_use=kv_use).reason

    assert at(64, 0.2) is Reason.REMOTE
    assert at(65, 0.2) is Reason.QUEUE_FULL_LOCAL
    assert at(65, 0.9) is Reason.REMOTE
    assert at(65, None) is Reason.REMOTE
    assert at(10_000, 0.2, prompt=20_000) is Reason.REMOTE


@given(st.integers(0, 2000), st.integers(0, 2000), st.floats(0, 1))
def test_local_limit_never_falls_with_the_queue_and_is_bounded(a: int, b: int, kv_use: float) -> None:
    low, high = sorted((a, b))
    first = local_limit(POLICY, prefill_queue=low, decode_kv_use=kv_use)
    second = local_limit(POLICY, prefill_queue=high, decode_kv_use=kv_use)
    assert POLICY.local_prefill_below <= first <= second <= POLICY.local_prefill_below * LOCAL_RISE_MAX


def test_without_prefill_or_with_several_samples_it_is_local() -> None:
    def why(*, has_prefill: bool = True, samples: int = 1) -> Reason:
        return decide(
            POLICY, prompt_tokens=20_000, held_tokens=0, prefill_queue=0, decode_kv_use=None, has_prefill=has_prefill, samples=samples
        ).reason

    assert why(has_prefill=False) is Reason.NO_PREFILL
    assert why(samples=2) is Reason.SAMPLES_LOCAL


def test_unit_with_the_prefix_unless_it_is_much_busier() -> None:
    idle, holder = Unit("idle", load=1.0), Unit("holder", load=3.0)
    assert pick_unit([idle, holder], [0, 500]) is holder
    holder.load = 20.0
    assert pick_unit([idle, holder], [0, 500]) is idle
    assert pick_unit([], []) is None


def test_equal_units_take_turns() -> None:
    units = [Unit("a", used_seq=5), Unit("b", used_seq=3)]
    assert pick_unit(units, [0, 0]) is units[1]


def test_prefill_replica_that_finishes_first() -> None:
    busy, idle = Replica("busy", tokens=8000), Replica("idle", tokens=0)
    assert pick_prefill([busy, idle], [10_000, 0], 10_000) is busy  # 8,000 against 10,000
    busy.tokens = 12_000
    assert pick_prefill([busy, idle], [10_000, 0], 10_000) is idle
    assert pick_prefill([], [], 10) is None


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(0, 5))
def test_the_shortest_goes_first_until_the_first_in_line_was_passed_over_often_enough(sizes: list[int], overtaken: int) -> None:
    index = next_in_line(sizes, overtaken)
    if overtaken >= OVERTAKEN_MAX:
        assert index == 0
    else:
        assert sizes[index] == min(sizes) and sizes[index] not in sizes[:index]


def test_decode_replica_by_room_prefix_and_load() -> None:
    a, b = Replica("a", running=1, kv_use=0.5), Replica("b", running=1, kv_use=0.2)
    assert pick_decode([a, b], [0, 0]) is b
    assert pick_decode([a, b], [900, 0]) is a
    a.kv_use = 0.97
    assert pick_decode([a, b], [900, 0]) is b
    b.kv_use = 0.99
    assert pick_decode([a, b], [900, 0]) is a  # all are full: the prefix decides again
    assert pick_decode([], []) is None
