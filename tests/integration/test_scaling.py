"""Scaling by hand on the real reconcilers: nothing restarts, what goes is drained, ranges and budgets hold, rollouts keep their weights."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from denvweb.core.errors import ConflictError, InvalidError
from fleets.domain.scaling.types import Knob
from fleets.domain.types import Role
from fleets.models import GpuClaim, Replica
from fleets.selectors import router_table
from releases.models import Rollout, StageScale
from releases.selectors.scaling import scale_view
from releases.services.scaling import stage_scale
from tests.integration.rollouts_world import STAGE, Demo, make_api

pytestmark = pytest.mark.django_db

RANGE = "{ min: 1, max: 3 }"


def _demo(*, gpus: int = 16, **fields: object) -> Demo:
    """One or two units of 1P1D, 4 GPUs a replica, in domains of 16."""
    demo = Demo(domains=3, gpus=gpus)
    demo.first(**{"units": 1, "prefills": RANGE, "decodes": RANGE, **fields})
    return demo


def _scale(**counts: int) -> None:
    stage_scale(stage=STAGE, actor="ada", via="cli", counts={Knob(name): count for name, count in counts.items()})


def _drained(demo: Demo) -> None:
    """Every engine finishes what it has, agents and routers say so, and what is drained ends."""
    demo.fleets.idle()
    demo.tick(9.0)
    for _ in range(5):
        demo.tick(2.0)


def _ready(demo: Demo) -> list[tuple[int, int]]:
    return [(pool.ready, pool.desired) for unit in demo.units() for pool in unit.pools]


def test_a_pool_grows_beside_running_replicas_and_shrinks_by_draining() -> None:
    demo = _demo()
    before = set(Replica.objects.values_list("id", flat=True))
    _scale(prefill=3)
    demo.settle()
    assert _ready(demo) == [(3, 3), (1, 1)]
    assert before < set(Replica.objects.values_list("id", flat=True)), "nothing was restarted"
    assert demo.stage().release is not None and demo.rollout().state == Rollout.State.SUCCEEDED, "it took no release"
    assert demo.units()[0].routable

    _scale(prefill=1)
    demo.settle()
    table = router_table(stage=STAGE)
    states = sorted(replica.readiness.value for replica in table.units[0].replicas if replica.role is Role.PREFILL)
    assert states == ["draining", "draining", "ready"], "the routers send them nothing new"
    assert GpuClaim.objects.count() == 16, "they have requests to finish, and keep their GPUs"
    _drained(demo)
    assert GpuClaim.objects.count() == 8 and _ready(demo) == [(1, 1), (1, 1)]
    assert before == set(Replica.objects.values_list("id", flat=True))


def test_a_replica_is_recalled_from_its_drain() -> None:
    demo = _demo(prefills=RANGE)
    _scale(decode=2)
    demo.settle()
    ids = set(Replica.objects.values_list("id", flat=True))
    _scale(decode=1)
    demo.settle()
    _scale(decode=2)
    for _ in range(3):
        demo.tick()
    assert set(Replica.objects.values_list("id", flat=True)) == ids and _ready(demo) == [(1, 1), (2, 2)]
    assert "replica.recalled" in demo.kinds()


def test_a_rebalance_takes_both_halves_at_once_and_waits_for_the_gpus() -> None:
    demo = _demo()
    _scale(decode=3)
    demo.settle()
    with pytest.raises(ConflictError, match="short by 8") as refused:
        _scale(prefill=3)
    assert refused.value.code == "no-room"
    _scale(prefill=3, decode=1)
    demo.settle()
    assert _ready(demo) == [(1, 3), (1, 1)] and not demo.units()[0].failed and demo.units()[0].routable
    _drained(demo)
    assert _ready(demo) == [(3, 3), (1, 1)]


def test_outside_the_range_it_takes_a_release() -> None:
    _demo()
    with pytest.raises(InvalidError) as refused:
        _scale(prefill=4, units=2)
    assert refused.value.code == "outside-range"
    assert "prefill.replicas: { min: 1, max: 4 }" in refused.value.detail
    assert "stages.prod-us.replicas: { min: 1, max: 2 }" in refused.value.detail
    assert refused.value.fields["units"] == ["must be 1, as the release has it"]
    assert not StageScale.objects.filter(wanted__prefill=4).exists()


def test_units_follow_by_hand_and_are_drained() -> None:
    demo = _demo(units="{ min: 1, max: 2 }")
    _scale(units=2)
    demo.settle()
    assert [unit.routable for unit in demo.units()] == [True, True]
    _scale(units=1)
    demo.settle()
    assert len(demo.units()) == 1
    view = scale_view(stage=STAGE)
    assert (view.ratio, view.knobs[0].held_by, view.knobs[0].in_force) == ("1P1D", "ada", 1)
    assert [event.kind for event in view.decisions] == ["scale.set", "scale.set"]


def test_more_units_than_the_fleet_has_room_for_are_refused() -> None:
    demo = _demo(gpus=8, units="{ min: 1, max: 9 }", prefills=1, decodes=1)
    _scale(units=3)
    demo.settle()
    with pytest.raises(ConflictError, match="room for 0") as refused:
        _scale(units=5)
    assert refused.value.code == "no-room"
    demo.settle()
    assert len(demo.units()) == 3


def test_scaling_in_mid_rollout_changes_totals_and_not_weights() -> None:
    demo = _demo(gpus=24)
    demo.release(block=32, units=1, prefills=RANGE, decodes=RANGE)
    demo.settle()
    weights = demo.weights()
    assert weights == {"ds-flash@1": 9000, "ds-flash@2": 1000}
    _scale(prefill=2)
    demo.settle()
    assert demo.weights() == weights and _ready(demo) == [(2, 2), (1, 1)] * 2
    row = demo.through(until={Rollout.State.SUCCEEDED, Rollout.State.ROLLED_BACK})
    assert row.state == Rollout.State.SUCCEEDED, row.why
    assert all(unit.shape == "2P1D" for unit in demo.units(2))
    demo.settle()
    assert scale_view(stage=STAGE).ratio == "2P1D", "a release keeps what is in force, where it allows it"


def test_the_api_sets_refuses_and_gives_back() -> None:
    _demo()
    api, path = make_api(), f"/api/v1/stages/{STAGE}/scale"
    got = api.post(path, {"prefill": 2, "reason": "a launch"}, content_type="application/json")
    assert got.status_code == 200, got.content
    assert got.json()["ratio"] == "2P1D" and got.json()["decisions"][0]["sentence"].endswith("a launch")
    refused = api.post(path, {"prefill": 9}, content_type="application/json")
    assert refused.status_code == 400 and refused.json()["code"] == "outside-range"
    assert api.post(path, {}, content_type="application/json").json()["code"] == "nothing-to-scale"
    back = api.post(path, {"auto": True}, content_type="application/json").json()
    assert [knob["held_by"] for knob in back["knobs"]] == ["", "", ""] and back["ratio"] == "2P1D"


def test_the_page_sets_what_was_changed_and_gives_it_back(settings: Any) -> None:
    _demo()
    client = Client()
    client.force_login(User.objects.create_user("ada"))
    path = f"/stages/{STAGE}/scale"
    shown = client.get(path).content.decode()
    assert 'name="prefill" type="number" inputmode="numeric" min="1" max="3" value="1"' in shown
    told = client.post(path, {"units": "1", "prefill": "2", "decode": "1", "reason": "a long day"}, follow=True).content.decode()
    assert "ada, since" in told and "prefill 1 -&gt; 2" in told and "a long day" in told
    row = StageScale.objects.get()
    assert row.manual.keys() == {"prefill"}, "what nobody touched stays with the traffic"
    assert "Not scaled: no number was changed" in client.post(path, {"prefill": "2"}, follow=True).content.decode()
    assert "Not scaled:" in client.post(path, {"prefill": "9"}, follow=True).content.decode()
    client.post(path, {"auto": "1"})
    row.refresh_from_db()
    assert row.manual == {}
    settings.DEFAULT_ROLE = "viewer"
    assert "Scaling takes the role admin or deployer or operator." in client.get(path).content.decode()
    assert client.post(path, {"prefill": "2"}).status_code == 403
