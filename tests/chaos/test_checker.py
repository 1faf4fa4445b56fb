"""The checker sees what it is there to see: each rule is broken once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from fleets.domain.protocol import RouteReplica, RouterTable, RouteUnit
from fleets.domain.types import Role
from metrics.domain.views import EventView
from tests.chaos.checker import Journey, Record, violations
from tests.chaos.clients import Sent
from tests.chaos.monkey import Injury
from tests.chaos.watch import Seen

OLD, NEW = "ds-flash@1", "ds-flash@2"


def unit(release: str, *, routable: bool = True, up: bool = True) -> RouteUnit:
    replicas = (RouteReplica(f"r-{release}", Role.AGGREGATED, release, "127.0.0.1", 1),) if up else ()
    return RouteUnit(f"u-{release}", release, release, release, "kv", routable, False, "none", replicas)


def table(at: float, generation: int, weights: dict[str, int], *units: RouteUnit) -> Seen:
    return Seen(at, RouterTable("ds-flash/prod-us", "ds-flash", 1, generation, weights, units or (unit(OLD), unit(NEW))))


def row(seq: int, kind: str) -> EventView:
    return EventView(seq, datetime.now(UTC), kind, "info", kind, "system", "system", rollout="ro-1")


def ended(state: str) -> Any:
    return SimpleNamespace(state=state, why="")


GOOD = Record(
    injuries=[Injury(50.0, "kill", "router-ds-flash-prod-us", serves=True)],
    tables=[
        table(0, 1, {OLD: 10_000}),
        table(10, 2, {OLD: 7_000, NEW: 3_000}),
        table(21, 3, {OLD: 10_000}),
    ],
    sent=[Sent(1, 2, ""), Sent(51, 52, "refused")],
    journeys=[Journey("ro-1", NEW, OLD, bad=True, ended=ended("rolled-back"), ended_at=30, rollback_acknowledged_at=20)],
    journal=[row(9, "rollout.rolled-back"), row(7, "rollout.rolling-back"), row(6, "rollout.started")],
    read=[5, 6, 7, 9],
)
JOURNEY = GOOD.journeys[0]


def test_a_good_record_violates_nothing() -> None:
    assert violations(GOOD) == []


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (replace(GOOD, tables=[table(0, 1, {OLD: 9_000})]), "do not sum to 100%"),
        (replace(GOOD, tables=[GOOD.tables[1], GOOD.tables[0], GOOD.tables[2]]), "went back from table"),
        (
            replace(GOOD, tables=[GOOD.tables[0], table(10, 2, {OLD: 7_000, NEW: 3_000}, unit(OLD), unit(NEW, up=False)), GOOD.tables[2]]),
            "got 30% without a unit",
        ),
        (
            replace(
                GOOD, tables=[GOOD.tables[0], table(10, 2, {OLD: 7_000, NEW: 3_000}, unit(OLD), unit(NEW, routable=False)), GOOD.tables[2]]
            ),
            "got 30% without a unit",
        ),
        (replace(GOOD, tables=[*GOOD.tables, table(40, 4, {OLD: 9_000, NEW: 1_000})]), "after it was rolled back"),
        (replace(GOOD, tables=GOOD.tables[:2]), "was not at 100%"),
        (replace(GOOD, journeys=[replace(JOURNEY, ended=None)]), "never ended"),
        (replace(GOOD, journeys=[replace(JOURNEY, ended=ended("succeeded"))]), "acknowledged rollback of ds-flash@2 was lost"),
        (
            replace(GOOD, journeys=[replace(JOURNEY, ended=ended("succeeded"), rollback_acknowledged_at=None)]),
            "bad release ds-flash@2 succeeded",
        ),
        (replace(GOOD, journal=GOOD.journal[1:]), "is not in the journal"),
        (replace(GOOD, journal=[row(10, "rollout.started"), *GOOD.journal]), "more than once"),
        (replace(GOOD, read=[5, 6, 9]), "never got rows [7]"),
        (replace(GOOD, read=[5, 6, 7, 7, 9]), "twice"),
        (replace(GOOD, read=[5, 6, 7]), "is at 7, the journal at 9"),
        (replace(GOOD, sent=[Sent(5, 6, "503")]), "requests failed with neither"),
        (replace(GOOD, left=["77 python"]), "was left after the stop"),
    ],
)
def test_each_rule(record: Record, words: str) -> None:
    found = violations(record)
    assert any(words in sentence for sentence in found), found


def test_a_weight_may_grow_just_after_an_engine_was_hurt() -> None:
    tables = [GOOD.tables[0], table(10, 2, {OLD: 7_000, NEW: 3_000}, unit(OLD), unit(NEW, up=False)), GOOD.tables[2]]
    hurt = [Injury(5.0, "kill", "engine --role=decode", serves=True), *GOOD.injuries]
    assert violations(replace(GOOD, tables=tables, injuries=hurt)) == []
