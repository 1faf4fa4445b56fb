"""Fleets in the database for tests of releases: joined nodes that have reported, with every GPU free."""

from __future__ import annotations

from django.utils import timezone

from fleets.domain.types import NodeState
from fleets.models import Domain, Fleet, Node


def make_fleet(name: str, kind: str, domains: int, nodes: int, gpus: int, *, simulated: bool = True) -> None:
    """A fleet of `domains` x `nodes` x `gpus`."""
    now = timezone.now()
    fleet = Fleet.objects.create(name=name, gpu_kind=kind, fabric_spans_nodes=nodes > 1, simulated=simulated)
    rows = [Domain(name=f"{name}/d{index:02}", fleet=fleet) for index in range(1, domains + 1)]
    Domain.objects.bulk_create(rows)
    Node.objects.bulk_create(
        Node(
            name=f"{domain.name.replace('/', '-')}-n{number:02}",
            domain=domain,
            gpus=gpus,
            host="127.0.0.1",
            port_base=20_000,
            port_count=400,
            simulated=simulated,
            credential_id=f"node-{domain.name}-{number}",
            secret_hash="",
            state=NodeState.READY,
            last_report_at=now,
            joined_at=now,
        )
        for domain in rows
        for number in range(1, nodes + 1)
    )


def make_demo_fleets() -> None:
    """The demo's two: 3 domains of 18 nodes x 4, and 4 nodes x 8."""
    make_fleet("gb200-use1", "GB200", 3, 18, 4)
    make_fleet("h200-use1", "H200", 4, 1, 8)
