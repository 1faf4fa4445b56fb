"""Joining, reporting, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from denvweb.core.errors import ConflictError, DenvError, ForbiddenError, InvalidError
from fleets.domain.protocol import PROTOCOL_VERSION, GpuReport, JoinRequest
from fleets.domain.types import NodeState
from fleets.models import Node
from fleets.selectors import fleet_maps, fleet_views, node_standing
from fleets.services import join_token_create, node_cordon, node_drain, nodes_join, report_take
from metrics.selectors import events_view
from tests.integration.fleets_world import World, unit_spec

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


def _told(kind: str) -> list[str]:
    return [event.sentence for event in events_view(fleet="gb200-use1") if event.kind == kind]


def test_a_join_whose_answer_was_lost_is_asked_again_by_the_same_agent_only() -> None:
    world = World(domains=1, nodes=1)
    facts = replace(world.agents["gb200-use1-d01-n01"].facts, name="n2", port_base=30_000)
    request = JoinRequest(join_token_create(fleet="gb200-use1", created_by="t"), (facts,), key="of the agent")
    first, second = (nodes_join(request=request).credentials["n2"] for _ in range(2))
    with pytest.raises(ForbiddenError):
        replace(world.agents["gb200-use1-d01-n01"], facts=facts, credential=first).sync(world.now)
    replace(world.agents["gb200-use1-d01-n01"], facts=facts, credential=second).sync(world.now)
    assert _code(replace(request, key="of another")) == _code(replace(request, key="")) == "join-token-used"
    late = timezone.now() + timedelta(hours=2)
    with pytest.raises(ForbiddenError, match="ended at"):
        nodes_join(request=request, now=late)
    assert _told("node.joined")[0] == "node n2 joined fleet gb200-use1 again, as its answer was lost"


def test_refused_joins_are_in_the_journal_of_the_tokens_fleet_and_a_strangers_is_not() -> None:
    world = World(domains=1, nodes=1)
    facts = world.agents["gb200-use1-d01-n01"].facts
    token = join_token_create(fleet="gb200-use1", created_by="t")
    assert _code(JoinRequest(token, (replace(facts, fleet="other"),))) == "bad-nodes"
    assert _code(JoinRequest(token.rpartition(".")[0] + ".guessed", (facts,))) == "join-token-unknown"
    (told,) = _told("node.refused")
    assert told.startswith("a join to fleet gb200-use1 was refused: gb200-use1-d01-n01 is of fleet other")
    nodes_join(request=JoinRequest(token, (facts,)))  # a refusal uses no token up
    nodes = (replace(facts, name=name, port_base=30_000) for name in ("n8", "n9"))
    assert _code(JoinRequest(token, tuple(nodes))) == "join-token-used"
    assert len(_told("node.refused")) == 2


@pytest.mark.parametrize(
    ("version", "code"), [(PROTOCOL_VERSION, ""), (PROTOCOL_VERSION + 1, ""), (PROTOCOL_VERSION + 2, "agent-too-new"), (0, "agent-too-old")]
)
def test_agents_of_neighbouring_versions_are_understood_and_others_are_told_what_to_do(version: int, code: str) -> None:
    world = World(domains=1, nodes=1)
    (agent,) = world.agents.values()
    report = replace(agent.report(world.now), version=version)
    fresh = replace(agent.facts, name="n2", port_base=30_000)
    request = JoinRequest(join_token_create(fleet="gb200-use1", created_by="t"), (fresh,), version=version)
    if not code:
        report_take(credential=agent.credential, report=report, now=world.now)
        nodes_join(request=request)
        return
    with pytest.raises(ConflictError, match="upgrade the ") as caught:
        report_take(credential=agent.credential, report=report, now=world.now)
    assert caught.value.code == code == _code(request)


def test_what_is_refused_is_said_on_the_node_and_once_in_the_journal() -> None:
    world = World(domains=1, nodes=2)
    first, second = world.agents.values()
    twin, stranger = replace(first, boot="boot2"), replace(second, credential=first.credential)
    for seconds in range(0, 60, 8):
        first.sync(world.now + timedelta(seconds=seconds))
        for agent in (twin, stranger):
            with pytest.raises(DenvError):
                agent.sync(world.now + timedelta(seconds=seconds + 1))
    told = _told("node.refused")
    assert len(told) <= 16 and all(sentence.startswith(f"a report of node {first.facts.name} was refused") for sentence in told)
    shown = fleet_maps()[0].domains[0].nodes
    assert "give each its own --state-dir" in shown[0].troubles[0] and not shown[1].troubles


def test_the_next_agent_of_a_state_folder_takes_over_at_once_and_a_copy_of_the_folder_does_not() -> None:
    world = World(domains=1, nodes=1)
    (agent,) = world.agents.values()
    following = replace(agent.report(world.now), boot="boot2", succeeds="boot1")
    report_take(credential=agent.credential, report=following, now=world.now + timedelta(seconds=1))
    late = replace(following, boot="boot3")
    with pytest.raises(ConflictError, match="may take over"):
        report_take(credential=agent.credential, report=late, now=world.now + timedelta(seconds=2))


def test_a_clock_an_hour_off_changes_nothing_and_is_said_once() -> None:
    world = World(domains=1, nodes=1)
    (agent,) = world.agents.values()
    ahead = replace(agent.report(world.now), clock_at=world.now.timestamp() + 3600)
    for seconds in range(0, 120, 4):
        report_take(credential=agent.credential, report=ahead, now=world.now + timedelta(seconds=seconds))
    (told,) = _told("node.clock")
    assert told.startswith(f"node {agent.facts.name}: its clock is ") and told.endswith(
        "ahead; set it by NTP (denv goes by the server's clock)"
    )
    row = Node.objects.get()
    assert row.state == NodeState.READY and row.last_report_at == world.now + timedelta(seconds=116)
    assert "set it by NTP" in fleet_maps()[0].domains[0].nodes[0].troubles[0]
    agent.sync(world.now + timedelta(seconds=120))
    assert _told("node.clock")[0].endswith("its clock is right again") and not fleet_maps()[0].domains[0].nodes[0].troubles


def test_a_node_that_was_repaired_joins_under_its_name_and_stays_out_of_use_until_it_is_uncordoned() -> None:
    world = World(domains=1, nodes=2)
    agent = next(iter(world.agents.values()))
    node_drain(node=agent.facts.name, actor="op", via="cli", reason="new fan")
    reply = nodes_join(request=JoinRequest(join_token_create(fleet="gb200-use1", created_by="t"), (replace(agent.facts, host="10.0.0.9"),)))
    replace(agent, credential=reply.credentials[agent.facts.name], boot="boot2").sync(world.now)
    row = Node.objects.get(name=agent.facts.name)
    assert (row.cordoned, row.draining, row.cordon_reason, row.host) == (True, True, "new fan", "10.0.0.9")
    assert Node.objects.count() == 2


def test_what_is_allocated_is_never_more_than_there_is() -> None:
    """Also when a node comes back with fewer GPUs than units hold there."""
    world = World(domains=1, nodes=2)
    world.unit(unit_spec(prefill=(4, 1), decode=(4, 1)))
    world.settle()
    agent = next(iter(world.agents.values()))
    fewer = replace(agent.facts, gpus=2)
    reply = nodes_join(request=JoinRequest(join_token_create(fleet="gb200-use1", created_by="t"), (fewer,)))
    agent.credential = reply.credentials[agent.facts.name]
    agent.sync(world.now)
    view = fleet_maps()[0]
    for node in (node for domain in view.domains for node in domain.nodes):
        states = [cell.state for cell in node.cells]
        standing = node_standing(node=node.node)
        assert standing.used == states.count("used") <= standing.gpus == len(states)
    assert view.free + sum(cell.state == "used" for domain in view.domains for node in domain.nodes for cell in node.cells) <= view.gpus
