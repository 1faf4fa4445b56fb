"""Dry runs of a stage that serves already: what changes, what stays, whether there is room."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fleets.domain.types import FleetView
from releases.domain.freezes import Frozen
from releases.domain.serving import process_of
from tests.domain.releases_world import DS_FLASH, GB200, fleet, look, serving, world

TWO, ONE = fleet("gb200-use1", "GB200", 2, 18, 4), fleet("gb200-use1", "GB200", 1, 18, 4)
NEXT = DS_FLASH.replace("stages:", "  engine: { decode: { speculative-draft-length: 3 } }\nstages:")
LARGE_BLOCKS = DS_FLASH.replace("stages:", "  kv-cache: { block-size: 128 }\nstages:")


def one_unit(text: str) -> str:
    """The same with one serving unit."""
    return text.replace("replicas: 2\n", "replicas: 1\n")


@pytest.mark.parametrize(
    ("before", "after", "where", "placed", "warning"),
    [
        (DS_FLASH, NEXT, GB200, "unit 1 keeps gb200-use1/d01, unit 3 on gb200-use1/d03", ""),
        (DS_FLASH, NEXT, TWO, "unit 1 keeps gb200-use1/d01, unit 2 keeps gb200-use1/d02", "at least 50% of capacity is left"),
        (DS_FLASH, LARGE_BLOCKS, TWO, "unit 1 on gb200-use1/d01, unit 2 on gb200-use1/d02", "at least 50% of capacity is left"),
        (one_unit(DS_FLASH), one_unit(NEXT), ONE, "unit 1 keeps gb200-use1/d01 (72 of 72 GPUs, same-domain)", "nothing serves meanwhile"),
        (DS_FLASH, DS_FLASH.replace("replicas: 2\n", "replicas: 3\n"), GB200, "unit 2 keeps gb200-use1/d02, unit 3 on gb200-use1/d03", ""),
    ],
)
def test_where_units_go_and_whether_there_is_room(before: str, after: str, where: FleetView, placed: str, warning: str) -> None:
    release, stage = look(after, serving(before, 7, where), 8)
    assert not release
    found = {finding.code: finding for finding in stage.findings}
    assert placed in found["placed"].sentence
    assert ("no-room-to-surge" in found) == bool(warning)
    if warning:
        assert found["no-room-to-surge"].severity == "warn"
        assert warning in found["no-room-to-surge"].sentence
    assert stage.plan is not None
    assert (stage.plan.from_release, stage.plan.to_release, stage.plan.surge) == (7, 8, not warning)


def test_the_plan_says_what_changes() -> None:
    plan = look(NEXT, serving(DS_FLASH, 7, GB200), 8)[1].plan
    assert plan is not None
    assert plan.changed == "decode only (speculative-draft-length 2 -> 3)"


def test_a_file_for_more_than_the_fleet_has_is_refused_before_planning() -> None:
    stage = look(DS_FLASH.replace("replicas: 2\n", "replicas: 3\n"), serving(DS_FLASH, 7, TWO), 8)[1]
    assert stage.plan is None
    assert [finding.code for finding in stage.findings] == ["no-free-domain"]
    assert "room for 2 of 3 serving units" in stage.findings[0].sentence


def test_many_units_are_counted_and_not_all_named() -> None:
    stage = look(DS_FLASH.replace("replicas: 2\n", "replicas: 20\n"), world(fleet("gb200-use1", "GB200", 20, 18, 4)))[1]
    assert "unit 12 on gb200-use1/d12, and 8 more (72 of 72 GPUs each, same-domain)" in stage.findings[0].sentence


def under(rate: float, prompt: int, output: int, text: str) -> dict[str, str]:
    """What a dry run says of the demo's shape, or of `text`, when so much came in the last hour: code to severity and sentence."""
    seen = replace(world(), traffic={"prod-us": process_of(rate, prompt, output, 0.0)}, make_draws=random.Random)
    return {finding.code: f"{finding.severity}: {finding.sentence}" for finding in look(text, seen)[1].findings}


SMALL = DS_FLASH.replace("replicas: 2 }, decode: { gpus: 64", "replicas: 1 }, decode: { gpus: 4").replace(
    "    replicas: 2", "    replicas: 1"
)


def test_measured_traffic_that_does_not_pay_for_two_pools_is_advised_against_with_its_numbers() -> None:
    found = under(2.0, 300, 1500, SMALL)
    assert found["decode-heavy-disaggregated"].startswith("advice: 295 uncached prompt tokens of 2,048, and 0.2 for each output token of 4")
    assert "low-volume-disaggregated" not in found
    computed = next(text for text in found.values() if "requests/s of 300 in and 1,500 out were measured" in text)
    assert "disaggregated (1 unit of 1P1D, 8 GB200) carries" in computed
    assert "and aggregated (" in computed


def test_a_shape_that_would_miss_its_limits_under_the_measured_load_is_warned_of() -> None:
    found = under(90.0, 8000, 200, SMALL)
    assert "which is too little" in found["limits-missed-at-load"]
    assert "at this load ttft p99 would be" in found["limits-missed-at-load"]
    assert "low-volume-disaggregated" in under(0.02, 8000, 200, SMALL)


def test_a_plan_that_leaves_less_than_the_load_meanwhile_warns_of_it() -> None:
    load = {"prod-us": process_of(2.0, 300, 1500, 0.0)}
    after = SMALL.replace("stages:", "  engine: { decode: { speculative-draft-length: 3 } }\nstages:")
    for where, warned in ((fleet("gb200-use1", "GB200", 1, 2, 4), True), (fleet("gb200-use1", "GB200", 2, 2, 4), False)):
        seen = replace(serving(SMALL, 7, where), traffic=load, make_draws=random.Random)
        found = {finding.code: finding for finding in look(after, seen, 8)[1].findings}
        assert ("capacity-below-load" in found) is warned
        if warned:
            assert found["capacity-below-load"].severity == "warn"
            assert "nothing serves; 2.0 were measured in the last hour" in found["capacity-below-load"].sentence


def test_a_frozen_stage_is_refused_where_it_would_begin_and_waits_where_it_comes_later() -> None:
    held = Frozen("fw-1", "holidays", "UTC", datetime(2027, 1, 2, 8, tzinfo=UTC))
    for first, glass, severity, says in (
        ("prod-us", False, "error", "wait for its end, or release with --break-glass"),
        ("prod-us", True, "warn", "the glass is broken"),
        ("staging", False, "warn", "waits for that"),
    ):
        seen = replace(serving(DS_FLASH, 7, GB200), frozen={"prod-us": held}, first=first, break_glass=glass)
        finding = next(finding for finding in look(NEXT, seen, 8)[1].findings if finding.code == "frozen")
        assert finding.severity == severity and says in finding.sentence
        assert finding.sentence.startswith("frozen until 2 Jan 2027 08:00 (UTC): holidays")
