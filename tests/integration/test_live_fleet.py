"""Agents, engines and cables that fail under traffic: real programs, each machine in a network namespace of its own (needs root)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from fleets.domain.types import NodeState
from fleets.models import Fleet, GpuClaim, Node, Rank, Replica, Router
from fleets.selectors import fleet_maps, router_table
from metrics.selectors import events_view
from tests.chaos.clients import Clients
from tests.integration.fleets_world import STAGE
from tests.integration.live_fleet import FLEET, HUNG_AFTER_S, LiveFleet, until
from tests.machines import machines

pytestmark = pytest.mark.django_db


@pytest.fixture
def _django_db_helper() -> None:
    """In place of pytest-django's: the fleet lives through all these tests, so nothing is rolled back or flushed between them."""


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFleet]:
    with django_db_blocker.unblock():
        try:
            with machines(3) as found:
                fleet = LiveFleet(found, tmp_path_factory.mktemp("live"))
                with fleet.running():
                    yield fleet
        finally:
            call_command("flush", verbosity=0, interactive=False)


def _kinds() -> list[str]:
    return [event.kind for event in events_view(fleet=FLEET)]


def test_an_agent_is_killed_and_its_engines_go_on_and_are_adopted(live: LiveFleet) -> None:
    machine = live.held()[0]
    before, clients = live.engines(machine), Clients(live.endpoint)
    restarts = {rank.id: rank.restarts for rank in Rank.objects.all()}
    with clients.sending():
        machine.kill_agent()
        assert live.engines(machine) == before
        boot = Node.objects.get(name=machine.name).boot
        live.start_agent(machine)
        until(lambda: Node.objects.get(name=machine.name).boot != boot, "the next agent reports at once: it knows whom it succeeds", 8.0)
        until(lambda: len(clients.sent) > 5, "requests are served")
    assert live.engines(machine) == before
    assert {rank.id: rank.restarts for rank in Rank.objects.all()} == restarts
    assert not [sent.error for sent in clients.sent if sent.error]


def test_an_engine_that_is_stopped_is_found_and_started_anew_while_the_other_unit_serves(live: LiveFleet) -> None:
    machine = live.held()[0]
    stopped, rank = live.engines(machine)["decode"], live.rank(machine, "decode")
    stopped.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    until(lambda: live.rank(machine, "decode").hung_engine == rank.engine_id, "it is found to hang", 3 * HUNG_AFTER_S)
    assert time.monotonic() - began_s >= HUNG_AFTER_S - 1.0
    live.until_complete()
    assert live.rank(machine, "decode").engine_id not in ("", rank.engine_id)
    assert live.rank(machine, "decode").id == rank.id, "it is started anew where it is"
    told = next(event for event in events_view(fleet=FLEET) if event.kind == "replica.hung")
    assert "no answer for" in told.sentence and machine.name in told.sentence
    assert live.ask().status_code == 200


def test_an_engine_that_answers_and_computes_nothing_is_ejected_told_of_and_started_anew(live: LiveFleet) -> None:
    first, second = live.held()
    for role in ("prefill", "decode"):  # slow, and no hang
        live.fault(second, role, slow_factor=8.0)
    rank = live.rank(first, "decode")
    live.fault(first, "decode", hang_ratio=1.0)
    clients = Clients(live.endpoint)
    with clients.sending():
        until(lambda: live.rank(first, "decode").hung_engine == rank.engine_id, "it is found to hang", 3 * HUNG_AFTER_S)
        assert rank.replica_id in Router.objects.get().gauges[0]["ejected"] + Router.objects.get().gauges[-1]["ejected"]
        live.until_complete()
        until(lambda: live.rank(first, "decode").engine_id not in ("", rank.engine_id), "another engine stands there")
    for role in ("prefill", "decode"):
        assert live.rank(second, role).hung_engine == "", "whoever is slow does not hang"
        live.fault(second, role, slow_factor=1.0)
    told = next(event for event in events_view(fleet=FLEET) if event.kind == "replica.hung")
    assert "made no step" in told.sentence and "router" in told.sentence


def test_a_machine_is_cut_off_and_replaced_and_when_its_cable_is_in_again_nothing_runs_twice(live: LiveFleet) -> None:
    cut, spare = live.held()[-1], live.spare()
    engines = live.engines(cut)
    cut.cut()
    live.age(cut, silent_s=11)
    assert Node.objects.get(name=cut.name).state == NodeState.SUSPECT
    live.age(cut, silent_s=31)
    assert Node.objects.get(name=cut.name).state == NodeState.LOST
    live.until_complete()
    assert set(live.engines(spare)) == {"prefill", "decode"}
    assert live.engines(cut) == engines, "what is cut off runs on, and its GPUs stay claimed"
    assert GpuClaim.objects.filter(node_id=cut.name).count() == 4
    assert live.ask().status_code == 200
    cut.heal()
    until(lambda: Node.objects.get(name=cut.name).state == NodeState.READY, "it reports again", 15)
    live.look_until(lambda: not live.engines(cut), "its old engines end")
    live.look_until(lambda: not GpuClaim.objects.filter(node_id=cut.name).exists(), "their GPUs are free")
    assert not [process for process in cut.processes() if "fleets.engines" in " ".join(process.cmdline())]
    live.until_complete()
    assert Replica.objects.count() == 4 and "node.back" in _kinds()


def test_when_no_agent_at_all_can_be_heard_nothing_is_withdrawn_and_it_is_said(live: LiveFleet) -> None:
    before = {replica.replica for unit in router_table(stage=STAGE).units for replica in unit.replicas}
    with live.bridge.broken():
        live.age(*live.machines, silent_s=31)
        assert not fleet_maps()[0].frozen, "the first look without a single node says nothing yet"
        Fleet.objects.update(deaf_since=timezone.now() - timedelta(seconds=20))
        live.age(*live.machines, silent_s=51)
        assert "3 of 3 nodes went silent at once" in fleet_maps()[0].frozen
        assert {node.state for node in Node.objects.all()} == {NodeState.SUSPECT}
        assert {replica.replica for unit in router_table(stage=STAGE).units for replica in unit.replicas} == before
        assert [live.ask().status_code for _ in range(4)] == [200] * 4
    live.look_until(lambda: not fleet_maps()[0].frozen, "they report again, and healing goes on")
    live.until_complete()
    assert {replica.replica for unit in router_table(stage=STAGE).units for replica in unit.replicas} == before


def test_while_the_web_process_is_down_requests_are_served_and_dead_engines_started_anew(live: LiveFleet) -> None:
    machine = live.held()[0]
    dead, clients = live.engines(machine)["prefill"], Clients(live.endpoint)
    live.web.stop()
    with clients.sending():
        os.kill(dead.pid, signal.SIGKILL)
        until(lambda: live.engines(machine).get("prefill") not in (None, dead), "its agent starts another")
        time.sleep(1.0)
    live.web.start()
    assert len(clients.sent) > 5 and not [sent.error for sent in clients.sent if sent.error]
    until(lambda: live.rank(machine, "prefill").restarts, "the control plane hears of it", 15)
    live.until_complete()
