"""Fleets as placement sees them, and as maps for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from django.utils import timezone

from denvweb.core import wire
from denvweb.core.units import format_bytes
from fleets.domain.lease import clock_sentence
from fleets.domain.protocol import GpuReport
from fleets.domain.types import DomainView, FleetView, NodeState, NodeView, Role
from fleets.domain.views import DomainMap, FleetMap, GpuCell, NodeMap
from fleets.models import Domain, Fleet, GpuClaim, Node

FOREIGN_BYTES_MAX = 512 * 2**20  # what an idle desktop or a monitor may hold; above it the GPU is somebody's
_CELL = (
    *("node_id", "gpu_index", "unit__stage", "unit__slot", "unit__release"),
    *("rank__index", "rank__gpus", "rank__replica__role", "rank__replica__ordinal", "rank__replica__release"),
)


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a GPU may not be given out: `broken`, or `foreign` when processes that are not denv's hold its memory."""

    state: str
    trouble: str
    unsure: bool = False  # only its driver is silent


def unfit_gpus(node: Node) -> dict[int, Unfit]:
    """Those of a node by their numbers, as its agent last reported them."""
    found = {}
    for report in wire.from_plain(node.gpu_reports, tuple[GpuReport, ...]):
        if not report.healthy:
            found[report.index] = Unfit("broken", f"broken: {report.detail}" if report.detail else "broken", report.unsure)
        elif report.foreign_bytes > FOREIGN_BYTES_MAX:
            found[report.index] = Unfit("foreign", f"held by processes that are not denv's: {format_bytes(report.foreign_bytes)}")
    return found


def _grouped(nodes: Sequence[Node], domains: Sequence[Domain]) -> tuple[dict[str, list[Domain]], dict[str, list[Node]]]:
    of_fleet: dict[str, list[Domain]] = defaultdict(list)
    of_domain: dict[str, list[Node]] = defaultdict(list)
    for domain in domains:
        of_fleet[domain.fleet_id].append(domain)
    for node in nodes:
        of_domain[node.domain_id].append(node)
    return of_fleet, of_domain


class _Loaded:
    """All rows of some fleets: three queries whatever their size."""

    def __init__(self, names: Sequence[str] | None) -> None:
        within = {} if names is None else {"fleet_id__in": list(names)}
        beneath = {} if names is None else {"domain__fleet_id__in": list(names)}
        domains = list(Domain.objects.filter(**within).select_related("fleet").order_by("name"))
        found = {domain.fleet_id: domain.fleet for domain in domains}  # a fleet comes with its first domain
        self.fleets = [found[name] for name in (sorted(found) if names is None else names) if name in found]
        nodes = list(Node.objects.filter(**beneath).order_by("name"))
        self.domains, self.nodes = _grouped(nodes, domains)

    def each_domain(self, fleet: Fleet) -> Iterator[tuple[Domain, list[Node]]]:
        """The fleet's domains with their nodes, both by name."""
        for domain in self.domains[fleet.name]:
            yield domain, self.nodes[domain.name]


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
                DomainView(domain.name, tuple(_node_view(node, claimed[node.name]) for node in nodes))
                for domain, nodes in loaded.each_domain(fleet)
            ),
            fabric_spans_nodes=fleet.fabric_spans_nodes,
            simulated=fleet.simulated,
        )
        for fleet in loaded.fleets
    )


def _node_view(node: Node, claimed: set[int]) -> NodeView:
    said = unfit_gpus(node) if node.gpu_reports else {}
    unfit = tuple(sorted(said))
    foreign = tuple(index for index in unfit if said[index].state == "foreign")
    free = tuple(index for index in range(node.gpus) if index not in claimed and index not in unfit)
    return NodeView(node.name, node.gpus, free, NodeState(node.state), node.cordoned or rests(node), unfit, foreign)


def rests(node: Node) -> bool:
    """Whether it came and went too often lately to be given anything new."""
    return node.rests_until is not None and node.rests_until > timezone.now()


_REFUSED = {
    "second-agent": "another agent process reports under its name: stop one of them",
    "other-node": "its agent reports for another node: give each its own --state-dir",
    "agent-too-new": "its agent is newer than the control plane: upgrade the control plane",
    "agent-too-old": "its agent is too old: upgrade it",
}
_REFUSED_SHOWN_S = 120.0


def node_troubles(node: Node) -> list[str]:
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
    for claim in GpuClaim.objects.filter(**beneath).select_related("unit", "rank__replica").only(*_CELL):
        cells[claim.node_id][claim.gpu_index] = _used_cell(claim)
    return tuple(
        _fleet_map(fleet, [_domain_map(domain, nodes, cells) for domain, nodes in loaded.each_domain(fleet)]) for fleet in loaded.fleets
    )


def _fleet_map(fleet: Fleet, domains: Sequence[DomainMap]) -> FleetMap:
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


def _domain_map(domain: Domain, nodes: Sequence[Node], cells: dict[str, dict[int, GpuCell]]) -> DomainMap:
    maps = tuple(_node_map(node, cells[node.name]) for node in nodes)
    free = sum(sum(cell.state == "free" for cell in shown.cells) for shown in maps if shown.state is NodeState.READY and not shown.cordoned)
    return DomainMap(domain.name, sum(node.gpus for node in nodes), free, maps)


def _node_map(node: Node, used: dict[int, GpuCell]) -> NodeMap:
    unfit = unfit_gpus(node) if node.gpu_reports else {}
    cells = tuple(_cell(index, used.get(index), unfit.get(index)) for index in range(node.gpus))
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


def driver_of(node: Node) -> str:
    """`580.95.05, CUDA 13.0`; empty where no driver says."""
    return ", ".join(part for part in (node.driver_version, node.cuda_version and f"CUDA {node.cuda_version}") if part)


def _cell(index: int, used: GpuCell | None, unfit: Unfit | None) -> GpuCell:
    """A GPU that is in use and broken is shown as in use, with its trouble; of what denv runs there nothing is foreign."""
    if used is not None:
        return replace(used, trouble=unfit.trouble) if unfit is not None and unfit.state == "broken" else used
    return GpuCell(index, "free") if unfit is None else GpuCell(index, unfit.state, trouble=unfit.trouble)


def _used_cell(claim: GpuClaim) -> GpuCell:
    unit, rank = claim.unit, claim.rank
    if rank is None:  # kept for the replica that comes next
        return GpuCell(claim.gpu_index, "used", unit.stage, unit.id, unit.slot, release=unit.release)
    return GpuCell(
        index=claim.gpu_index,
        state="used",
        stage=unit.stage,
        unit=unit.id,
        slot=unit.slot,
        role=Role(rank.replica.role),
        ordinal=rank.replica.ordinal,
        release=rank.replica.release,
        first=rank.index == 0 and claim.gpu_index == min(rank.gpus),
    )
