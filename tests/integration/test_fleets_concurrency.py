"""Many at once: agents, reconcilers and changes neither wait for each other for ever nor do work twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from django.db import connection

from fleets.domain.types import Role
from fleets.models import GpuClaim, Rank, Replica
from fleets.reconcile import reconcile
from fleets.services import unit_set_routable, unit_stop
from tests.integration.fleets_world import RELEASE, World, unit_spec

pytestmark = pytest.mark.django_db(transaction=True)


def _at_once(*works: Callable[[], object]) -> None:
    """Run all at once; the first error of any is raised here."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # whatever it is, it is raised again below
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_agents_of_shared_nodes_report_while_units_come_and_go() -> None:
    world = World(domains=1, nodes=4, gpus=8)
    shared = (unit_spec(prefill=(2, 1), decode=(12, 1)), unit_spec(prefill=(2, 1), decode=(12, 1), stage="llama/prod"))
    old = [world.unit(spec) for spec in shared]
    world.settle()
    world.route({RELEASE: 10_000})

    def report(name: str) -> None:
        for _ in range(12):
            world.agents[name].sync(world.now)

    def change() -> None:
        for unit in old:
            unit_set_routable(unit=unit, routable=True)
            unit_stop(unit=unit)
        for _ in range(4):
            reconcile(world.now)

    _at_once(change, *(partial(report, name) for name in world.agents))
    world.settle()
    assert world.units() == [] and world.units(stage="llama/prod") == []
    assert not GpuClaim.objects.exists() and not Rank.objects.exists()


def test_two_passes_at_once_replace_a_replica_once() -> None:
    world = World(domains=1, nodes=5)
    world.unit()
    world.settle()
    lost = Rank.objects.filter(replica__role=Role.PREFILL)[0].node_id
    for _ in range(3):
        world.tick(9, silent={lost})
    world.now += timedelta(seconds=5)
    world.sync(silent={lost})
    for _ in range(2):
        _at_once(*[lambda: reconcile(world.now)] * 3)
    assert Replica.objects.filter(role=Role.PREFILL, retired=False).count() == 2
    assert Replica.objects.filter(role=Role.PREFILL, retired=True).count() == 1
    assert GpuClaim.objects.count() == 20
