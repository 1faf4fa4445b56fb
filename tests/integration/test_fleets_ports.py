"""Which ports ranks get on a node, and that each is told its own address."""

from __future__ import annotations

import pytest

from fleets.domain.ports import port_count
from fleets.models import Rank
from fleets.selectors import node_snapshot
from tests.integration.fleets_world import World, unit_spec

pytestmark = pytest.mark.django_db


def test_a_rank_with_several_groups_gets_a_longer_block_and_nobody_shares() -> None:
    world = World(domains=1, nodes=1, gpus=16, kind="H200")
    world.unit(unit_spec(prefill=(4, 2), decode=(8, 1)))
    taken: list[int] = []
    for rank in Rank.objects.select_related("replica"):
        count = port_count(len(rank.gpus), rank.replica.engine["tensor_parallel"])
        assert count == (8 if len(rank.gpus) == 8 else 4)
        taken += range(rank.port, rank.port + count)
    assert len(taken) == 16 == len(set(taken))


def test_a_follower_knows_its_own_address_and_its_leaders() -> None:
    world = World(domains=1, nodes=4)
    world.unit(unit_spec())
    specs = [spec for name in world.agents for spec in node_snapshot(node=name).ranks]
    assert {spec.own_host for spec in specs} == {"127.0.0.1"}
    assert all(spec.host for spec in specs)
    assert any(spec.index == 1 for spec in specs)
