"""Joining, reporting, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from denvweb.core.errors import ConflictError, DenvError, ForbiddenError, InvalidError
from fleets.domain.protocol import GpuReport, JoinRequest
from fleets.domain.types import NodeState
from fleets.selectors import fleet_maps, fleet_views
from fleets.services import join_token_create, node_cordon, nodes_join, report_take
from tests.integration.fleets_world import World

pytestmark = pytest.mark.django_db


def test_joined_nodes_are_new_until_they_report() -> None:
    world = World(domains=1, nodes=2)
    fresh = replace(next(iter(world.agents.values())).facts, name="gb200-use1-d01-n09", port_base=30_000)
    nodes_join(request=JoinRequest(join_token_create(fleet="gb200-use1", created_by="t"), (fresh,)))
    states = {node.name: node.state for domain in fleet_views()[0].domains for node in domain.nodes}
    assert states["gb200-use1-d01-n09"] is NodeState.NEW
    assert states["gb200-use1-d01-n01"] is NodeState.READY
    assert fleet_views()[0].domains[0].free == 8


def _code(request: JoinRequest) -> str:
    with pytest.raises(DenvError) as caught:
        nodes_join(request=request)
    return caught.value.code


def test_a_join_token_joins_once_in_time_and_for_its_fleet_only() -> None:
    world = World(domains=1, nodes=1)
    facts = replace(world.agents["gb200-use1-d01-n01"].facts, name="n2", port_base=30_000)
    token = join_token_create(fleet="gb200-use1", created_by="t")
    assert _code(JoinRequest("join-x.y", (facts,))) == "join-token-unknown"
    assert _code(JoinRequest(token, (replace(facts, fleet="other"),))) == "bad-nodes"
    assert _code(JoinRequest(token, (replace(facts, gpu_kind="H200"),))) == "gpu-kind-mismatch"
    assert _code(JoinRequest(token, ())) == "no-nodes"
    nodes_join(request=JoinRequest(token, (facts,)))
    assert _code(JoinRequest(token, (facts,))) == "join-token-used"
    old = join_token_create(fleet="gb200-use1", created_by="t", ttl_s=1)
    with pytest.raises(ForbiddenError, match="ended at"):
        nodes_join(request=JoinRequest(old, (facts,)), now=timezone.now() + timedelta(seconds=2))


def test_every_mistake_of_a_join_is_named() -> None:
    world = World(domains=1, nodes=1)
    facts = world.agents["gb200-use1-d01-n01"].facts
    bad = (replace(facts, gpus=0), replace(facts, port_count=1, host=""))
    with pytest.raises(InvalidError) as caught:
        nodes_join(request=JoinRequest(join_token_create(fleet="gb200-use1", created_by="t"), bad))
    assert set(caught.value.fields) == {"nodes.0", "nodes.1", "nodes"}


def test_joining_again_replaces_the_credential_and_keeps_the_node() -> None:
    world = World(domains=1, nodes=1)
    agent = world.agents["gb200-use1-d01-n01"]
    reply = nodes_join(request=JoinRequest(join_token_create(fleet="gb200-use1", created_by="t"), (agent.facts,)))
    with pytest.raises(ForbiddenError):
        agent.sync(world.now)
    agent.credential, agent.boot = reply.credentials[agent.facts.name], "boot2"
    agent.sync(world.now)  # at once: the credential says that it is the node's only agent now


def test_a_node_may_not_report_for_another() -> None:
    world = World(domains=1, nodes=2)
    first, second = world.agents.values()
    second.credential = first.credential
    with pytest.raises(ForbiddenError, match="may not report for"):
        second.sync(world.now)


def test_a_second_agent_under_one_name_is_refused_while_the_first_lives() -> None:
    world = World(domains=1, nodes=1)
    agent = world.agents["gb200-use1-d01-n01"]
    twin = replace(agent, boot="boot2")
    with pytest.raises(ConflictError, match="may take over") as caught:
        twin.sync(world.now + timedelta(seconds=9))
    assert caught.value.code == "second-agent"
    agent.sync(world.now + timedelta(seconds=9))
    twin.sync(world.now + timedelta(seconds=20))


def test_a_report_with_nothing_new_takes_three_queries(django_assert_num_queries) -> None:  # type: ignore[no-untyped-def]  # pytest-django's
    world = World(domains=1, nodes=4)
    world.unit()
    world.settle()
    agent = next(iter(world.agents.values()))
    with django_assert_num_queries(3):
        assert agent.sync(world.now).unchanged


def test_broken_foreign_and_cordoned_gpus_are_not_given_out() -> None:
    world = World(domains=1, nodes=3)
    names = list(world.agents)
    agent = world.agents[names[0]]
    gpus = (GpuReport(0, healthy=False), GpuReport(1, foreign_bytes=40 * 2**30), GpuReport(2, foreign_bytes=2**20), GpuReport(3))
    report_take(credential=agent.credential, report=replace(agent.report(world.now), gpus=gpus), now=world.now)
    node_cordon(node=names[1], cordoned=True, actor="op", via="api")
    domain = fleet_views(names=["gb200-use1"])[0].domains[0]
    assert [node.free for node in domain.nodes] == [(2, 3), (0, 1, 2, 3), (0, 1, 2, 3)]
    assert domain.free == 6
    shown = fleet_maps()[0]
    assert [cell.state for cell in shown.domains[0].nodes[0].cells] == ["broken", "foreign", "free", "free"]
    assert shown.free == 6
