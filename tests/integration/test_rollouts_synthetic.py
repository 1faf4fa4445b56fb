"""A canary whom users hardly ask: denv's own requests are the evidence, asked for while it is judged and no longer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fleets.selectors import router_table
from metrics.domain.types import AlarmCount, Route, SeriesDelta, SeriesKey
from releases.domain.synthetic import synthetic_text
from releases.models import Rollout
from releases.selectors.rollouts import view_of
from releases.services.releases import release_create
from tests.integration.rollouts_world import STAGE, Demo, release_yaml

pytestmark = pytest.mark.django_db
PROBE = "rollout: { probe: { rate: 2/s, prompts: [hello, there] }, max-wait: 20s, "


@dataclass
class Thin(Demo):
    """Nobody asks the new release; the router does, if the table says so."""

    bad: str = ""  # the release that fails

    def made(self, seconds: int) -> list[SeriesDelta]:
        """The router's own requests of some seconds."""
        table = router_table(stage=STAGE)
        if table.synthetic is None:
            return []
        n, found = round(table.synthetic.per_s * seconds), []
        for unit in table.units:
            if unit.release in table.synthetic.releases:
                failed = n // 2 if unit.release == self.bad else 0
                counts = {"ttft-p99": AlarmCount(n, 0), "error-rate": AlarmCount(n, failed), "errors-plainly": AlarmCount(n, failed)}
                key = SeriesKey(STAGE, unit.unit, unit.prefill_release, unit.decode_release, Route.REMOTE, probe=True)
                found.append(SeriesDelta(key, {"requests": n}, alarms=counts))
        return found

    def pass_time(self, seconds: int) -> None:
        self.seq += 1
        self.fleets.router(seq=self.seq, generation=router_table(stage=STAGE).generation, series=tuple(self.made(seconds)))
        self.tick(seconds)

    def to(self, states: set[str]) -> Rollout:
        for _ in range(200):
            self.pass_time(4)
            if self.rollout().state in states:
                return self.rollout()
        raise AssertionError(f"{self.rollout().state}: {self.rollout().why}")


@pytest.fixture
def thin() -> Thin:
    thin = Thin(domains=2)
    thin.first(units=1)
    release_create(yaml=release_yaml(block=32, units=1).replace("rollout: { ", PROBE), actor="ada", via="cli")
    return thin


def test_its_own_requests_carry_a_canary_that_nobody_asks_and_stop_with_the_hold(thin: Thin) -> None:
    seen = []
    for _ in range(200):
        thin.pass_time(4)
        table = router_table(stage=STAGE)
        seen.append((thin.weights().get("ds-flash@2", 0), table.synthetic is not None))
        if thin.weights().get("ds-flash@2") == 10_000:
            break
    assert {weight for weight, asked in seen if asked} == {1_000, 5_000}
    assert {asked for weight, asked in seen if weight in (0, 10_000)} == {False}
    view = view_of(thin.rollout())
    judged = [verdict for verdict in view.verdicts if verdict.synthetic]
    assert {verdict.alarm for verdict in judged} == {"ttft-p99 synthetic", "error-rate synthetic", "errors-plainly synthetic"}


def test_people_are_told_how_much_of_the_evidence_is_made(thin: Thin) -> None:
    for _ in range(60):
        thin.pass_time(4)
        if (text := synthetic_text(view_of(thin.rollout()).verdicts)).startswith("16 of 16 requests"):
            break
    assert text == "16 of 16 requests on the new release are synthetic, and are judged apart"
    assert router_table(stage=STAGE).synthetic is not None
    assert router_table(stage=STAGE).synthetic.prompts == ("hello", "there")  # type: ignore[union-attr]  # just looked
    assert "prompts" not in str(thin.rollout().data["policy"]["probe"]) or thin.rollout().data["policy"]["probe"]["prompts"] == []


def test_a_release_that_fails_them_goes_back_though_no_user_met_it(thin: Thin) -> None:
    thin.bad = "ds-flash@2"
    rollout = thin.to({Rollout.State.ROLLED_BACK})
    assert "synthetic requests failed" in str(rollout.data["cause"])
    assert router_table(stage=STAGE).synthetic is None
