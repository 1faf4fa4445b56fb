"""Fleets as placement sees them, and as maps for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.utils import timezone

from denvweb.core import wire
from denvweb.core.units import format_bytes
from fleets.domain.lease import clock_sentence
from fleets.domain.protocol import GpuReport
from fleets.domain.types import DomainView, FleetView, NodeState, NodeView, Role
from fleets.domain.views import DomainMap, FleetMap, GpuCell, NodeMap
from fleets.models import Domain, GpuClaim, Node

FOREIGN_BYTES_MAX = 512 * 2**20  # what an idle desktop or a monitor may hold; above it the GPU is somebody's
_FLEET = ("fleet_id", "fleet__gpu_kind", "fleet__fabric_spans_nodes", "fleet__simulated", "fleet__frozen")
_CELL = (
    *("node_id", "gpu_index", "unit__stage", "unit_id", "unit__slot", "unit__release"),
    *("rank__replica__role", "rank__replica__ordinal", "rank__replica__release", "rank__index", "rank__gpus"),
)


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a GPU may not be given out: `broken`, or `foreign` when processes that are not denv's hold its memory."""

    state: str
    trouble: str
    unsure: bool = False  # only its driver is silent


def unfit_gpus(node: Node | NodeRow) -> dict[int, Unfit]:
    """Those of a node by their numbers, as its agent last reported them."""
    found = {}
    for report in wire.from_plain(node.gpu_reports, tuple[GpuReport, ...]):
        if not report.healthy:
            found[report.index] = Unfit("broken", f"broken: {report.detail}" if report.detail else "broken", report.unsure)
        elif report.foreign_bytes > FOREIGN_BYTES_MAX:
            found[report.index] = Unfit("foreign", f"held by processes that are not denv's: {format_bytes(report.foreign_bytes)}")
    return found


@dataclass(frozen=True, slots=True)
class NodeRow:
    """What the maps and placement want of a node; the words are those of its model. A model's object takes three times as long."""

    name: str
    domain_id: str
    gpus: int
    state: str
    cordoned: bool
    cordon_reason: str
    draining: bool
    last_report_at: datetime | None
    clock_skew_s: float | None
    gpu_reports: list[Any]
    losses: int
    rests_until: datetime | None
    refused: str
    refused_at: datetime | None
    driver_version: str
    cuda_version: str
    gpu_memory_bytes: int


_NODE = tuple(field.name for field in fields(NodeRow))


@dataclass(frozen=True, slots=True)
class _FleetRow:
    """A fleet without what is under it."""

    name: str
    gpu_kind: str
    fabric_spans_nodes: bool
    simulated: bool
    frozen: str


class _Loaded:
    """All rows of some fleets: two queries whatever their size. A fleet comes with its first domain."""

    def __init__(self, names: Sequence[str] | None) -> None:
        within = {} if names is None else {"fleet_id__in": list(names)}
        beneath = {} if names is None else {"domain__fleet_id__in": list(names)}
        found: dict[str, _FleetRow] = {}
        self.domains: dict[str, list[str]] = defaultdict(list)
        for domain, *fleet in Domain.objects.filter(**within).order_by("name").values_list("name", *_FLEET):
            found.setdefault(fleet[0], _FleetRow(*fleet))
            self.domains[fleet[0]].append(domain)
        self.fleets = [found[name] for name in (sorted(found) if names is None else names) if name in found]
        self.nodes: dict[str, list[NodeRow]] = defaultdict(list)
        for row in Node.objects.filter(**beneath).order_by("name").values_list(*_NODE):
            node = NodeRow(*row)
            self.nodes[node.domain_id].append(node)

    def each_domain(self, fleet: _FleetRow) -> Iterator[tuple[str, list[NodeRow]]]:
        """The fleet's domains with their nodes, both by name."""
        for domain in self.domains[fleet.name]:
            yield domain, self.nodes[domain]


def fleet_names() -> tuple[str, ...]:
    """By name."""
    return tuple(sorted(set(Domain.objects.values_list("fleet_id", flat=True))))


def fleet_views(*, names: Sequence[str] | None = None) -> tuple[FleetView, ...]:
    """Fleets as placement sees them, in the order of `names` (unknown ones are left out), else by name."""
    loaded = _Loaded(names)
    claimed: dict[str, set[int]] = defaultdict(set)
    beneath = {} if names is None else {"node__domain__fleet_id__in": list(names)}
    for node, index in GpuClaim.objects.filter(**beneath).values_list("node_id", "gpu_index"):
        claimed[node].add(index)
    return tuple(
        FleetView(
            name=fleet.name,
            gpu_kind=fleet.gpu_kind,
            domains=tuple(
                DomainView(domain, tuple(_node_view(node, claimed[node.name]) for node in nodes))
                for domain, nodes in loaded.each_domain(fleet)
            ),
            fabric_spans_nodes=fleet.fabric_spans_nodes,
            simulated=fleet.simulated,
        )
        for fleet in loaded.fleets
    )


def _node_view(node: NodeRow, claimed: set[int]) -> NodeView:
    said = unfit_gpus(node) if node.gpu_reports else {}
    unfit = tuple(sorted(said))
    foreign = tuple(index for index in unfit if said[index].state == "foreign")
    free = tuple(index for index in range(node.gpus) if index not in claimed and index not in unfit)
    return NodeView(node.name, node.gpus, free, NodeState(node.state), node.cordoned or rests(node), unfit, foreign)


def rests(node: Node | NodeRow) -> bool:
    """Whether it came and went too often lately to be given anything new."""
    return node.rests_until is not None and node.rests_until > timezone.now()


_REFUSED = {
    "second-agent": "another agent process reports under its name: stop one of them",
    "other-node": "its agent reports for another node: give each its own --state-dir",
    "agent-too-new": "its agent is newer than the control plane: upgrade the control plane",
    "agent-too-old": "its agent is too old: upgrade it",
}
_REFUSED_SHOWN_S = 120.0


def node_troubles(node: Node | NodeRow) -> list[str]:
    """What is wrong with the node itself, in sentences without its name."""
    said = []
    if node.refused_at and (timezone.now() - node.refused_at).total_seconds() < _REFUSED_SHOWN_S:
        said.append(_REFUSED.get(node.refused, f"its reports are refused ({node.refused})"))
    if clock := clock_sentence(node.clock_skew_s or 0.0):
        said.append(clock)
    if rests(node):
        said.append(f"it came and went {node.losses} times: nothing new before {node.rests_until:%H:%M:%S} UTC")
    return said


def fleet_maps(*, names: Sequence[str] | None = None) -> tuple[FleetMap, ...]:
    """Fleets as maps of their GPUs, in the order of `names`, else by name."""
    loaded = _Loaded(names)
    cells: dict[str, dict[int, GpuCell]] = defaultdict(dict)
    beneath = {} if names is None else {"node__domain__fleet_id__in": list(names)}
    for node, index, *claim in GpuClaim.objects.filter(**beneath).values_list(*_CELL):
        cells[node][index] = _used_cell(index, *claim)
    return tuple(
        _fleet_map(fleet, [_domain_map(domain, nodes, cells) for domain, nodes in loaded.each_domain(fleet)]) for fleet in loaded.fleets
    )


def _fleet_map(fleet: _FleetRow, domains: Sequence[DomainMap]) -> FleetMap:
    nodes = [node for domain in domains for node in domain.nodes]
    return FleetMap(
        fleet=fleet.name,
        gpu_kind=fleet.gpu_kind,
        simulated=fleet.simulated,
        gpus=sum(domain.size for domain in domains),
        free=sum(domain.free for domain in domains),
        nodes=len(nodes),
        nodes_silent=sum(node.state in (NodeState.SUSPECT, NodeState.LOST) for node in nodes),
        frozen=fleet.frozen,
        domains=tuple(domains),
    )


def _domain_map(domain: str, nodes: Sequence[NodeRow], cells: dict[str, dict[int, GpuCell]]) -> DomainMap:
    maps = tuple(_node_map(node, cells[node.name]) for node in nodes)
    free = sum(sum(cell.state == "free" for cell in shown.cells) for shown in maps if shown.state is NodeState.READY and not shown.cordoned)
    return DomainMap(domain, sum(node.gpus for node in nodes), free, maps)


def _node_map(node: NodeRow, used: dict[int, GpuCell]) -> NodeMap:
    unfit = unfit_gpus(node) if node.gpu_reports else {}
    cells = tuple(_cell(index, used.get(index), unfit.get(index)) for index in range(node.gpus)) if used or unfit else _all_free(node.gpus)
    return NodeMap(
        node=node.name,
        state=NodeState(node.state),
        cordoned=node.cordoned,
        last_report_at=node.last_report_at,
        cells=cells,
        draining=node.draining,
        cordon_reason=node.cordon_reason,
        troubles=(*node_troubles(node), *(f"GPU {cell.index} is {cell.trouble}" for cell in cells if cell.trouble)),
        driver=driver_of(node),
        gpu_memory_bytes=node.gpu_memory_bytes,
    )


def driver_of(node: Node | NodeRow) -> str:
    """`580.95.05, CUDA 13.0`; empty where no driver says."""
    return ", ".join(part for part in (node.driver_version, node.cuda_version and f"CUDA {node.cuda_version}") if part)


def _cell(index: int, used: GpuCell | None, unfit: Unfit | None) -> GpuCell:
    """A GPU that is in use and broken is shown as in use, with its trouble; of what denv runs there nothing is foreign."""
    if used is not None:
        return replace(used, trouble=unfit.trouble) if unfit is not None and unfit.state == "broken" else used
    return GpuCell(index, "free") if unfit is None else GpuCell(index, unfit.state, trouble=unfit.trouble)


def _used_cell(
    index: int,
    stage: str,
    unit: str,
    slot: int,
    unit_release: str,
    role: str | None,
    ordinal: int,
    release: str,
    rank: int,
    gpus: Sequence[int],
) -> GpuCell:
    if role is None:  # kept for the replica that comes next
        return GpuCell(index, "used", stage, unit, slot, release=unit_release)
    first = rank == 0 and index == min(gpus)
    return GpuCell(index, "used", stage, unit, slot, Role(role), ordinal, release, first)


@lru_cache(maxsize=256)
def _all_free(gpus: int) -> tuple[GpuCell, ...]:
    """The cells of a node on which nothing runs: nearly every node of a large fleet, so they are made once."""
    return tuple(GpuCell(index, "free") for index in range(gpus))
