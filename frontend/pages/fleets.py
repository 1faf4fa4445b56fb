"""Fleets: what runs where, what is free, what is broken?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.http import HttpResponse
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.http import require_safe

from denvweb.access import seen_by
from fleets.api.access import access_fleet_maps
from fleets.domain.types import NodeState
from fleets.domain.views import DomainMap, FleetMap, NodeMap
from fleets.selectors import unit_releases
from frontend import filters, gpumap, words
from frontend.gpumap import Picture, Tenant, Tenants
from frontend.pages.base import PageRequest, page, show
from frontend.words import Badge
from releases.selectors.heads import stage_bases

_READY_SHOWN = 100  # nodes; the others are asked for
DENSE_ABOVE = 12  # domains of one fleet
_TILE_WORDS = {"x": "a node lost", "s": "silent", "c": "with a canary", "b": "in use", "f": "free"}
_TILE_MARKS = {"x": "×", "s": "?", "c": "c", "b": "", "f": ""}


@dataclass(frozen=True, slots=True)
class Tile:
    """One domain in the dense view."""

    kind: str
    mark: str
    label: str
    name: str


@dataclass(frozen=True, slots=True)
class Block:
    """A fleet on its page: maps of its domains, or tiles where there are many."""

    view: FleetMap
    pictures: tuple[Picture, ...]
    tiles: tuple[Tile, ...]
    used: int
    unusable: int
    small: bool  # domains of one node
    shape: str

    @property
    def dense(self) -> bool:
        """Whether tiles stand for maps."""
        return bool(self.tiles)

    @property
    def tiles_html(self) -> SafeString:
        """All tiles as buttons, one of them a tab stop. A template takes ten times as long, and there are a thousand."""
        fleet = escape(self.view.fleet)
        return mark_safe("".join(_button(fleet, tile, index > 0) for index, tile in enumerate(self.tiles)))


def _button(fleet: str, tile: Tile, skipped: bool) -> str:
    stop = ' tabindex="-1"' if skipped else ""
    ids = f'data-k="{tile.kind}" id="tile-{fleet}-{escape(tile.name)}"'
    return f'<button class="tile" type="button" {ids} aria-label="{escape(tile.label)}"{stop}>{tile.mark}</button>'


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node in the table."""

    fleet: str
    node: str
    badge: Badge
    runs: str
    used: int
    gpus: int
    last_report_at: datetime | None
    reason: str


def _usable(node: NodeMap) -> bool:
    return node.state is NodeState.READY and not node.cordoned


def _counts(fleet: FleetMap) -> tuple[int, int]:
    """GPUs in use and GPUs that are neither in use nor free."""
    used = sum(
        cell.state == "used" for domain in fleet.domains for node in domain.nodes if node.state is NodeState.READY for cell in node.cells
    )
    return used, max(0, fleet.gpus - fleet.free - used)


def _tile(domain: DomainMap, who: Tenants) -> Tile:
    picture = gpumap.draw(domain, who, cells=False)
    return Tile(picture.tile, _TILE_MARKS[picture.tile], f"{picture.label}, {_TILE_WORDS[picture.tile]}", picture.name)


_TILE_ORDER = "xscbf"


def block(fleet: FleetMap, who: Tenants) -> Block:
    """A fleet ready for its page."""
    used, unusable = _counts(fleet)
    dense = len(fleet.domains) > DENSE_ABOVE
    tiles = sorted((_tile(domain, who) for domain in fleet.domains), key=lambda tile: _TILE_ORDER.index(tile.kind)) if dense else ()
    pictures = () if dense else tuple(gpumap.draw(domain, who) for domain in fleet.domains)
    sizes = Counter(domain.size for domain in fleet.domains)
    shape = ", ".join(f"{words.plural(count, 'domain')} of {size} GPUs" for size, count in sorted(sizes.items()))
    small = all(len(domain.nodes) <= 1 for domain in fleet.domains)
    return Block(fleet, pictures, tuple(tiles), used, unusable, small, shape)


def _runs(node: NodeMap) -> str:
    letters = {"prefill": "P", "decode": "D", "aggregated": "A"}
    found = {(cell.stage, f"{letters[cell.role.value]}{cell.ordinal + 1}") for cell in node.cells if cell.stage and cell.role}
    stages = sorted({stage for stage, _ in found})
    return "; ".join(f"{stage} {' '.join(sorted(mark for at, mark in found if at == stage))}" for stage in stages)


def _reason(fleet: FleetMap, node: NodeMap) -> str:
    parts = [
        "healing is frozen" if fleet.frozen and node.state in (NodeState.SUSPECT, NodeState.LOST) else "",
        "its replicas are replaced" if not fleet.frozen and node.state is NodeState.LOST else "",
        "its report is late" if not fleet.frozen and node.state is NodeState.SUSPECT else "",
        "takes nothing new" if node.cordoned else "",
        *node.troubles,
        "its agent has not reported yet" if node.state is NodeState.NEW else "",
    ]
    return "; ".join(part for part in parts if part)


def _node_row(fleet: FleetMap, node: NodeMap) -> NodeRow:
    return NodeRow(
        fleet=fleet.fleet,
        node=node.node,
        badge=words.node_badge(node.state.value, node.cordoned),
        runs=_runs(node),
        used=sum(cell.state == "used" for cell in node.cells),
        gpus=len(node.cells),
        last_report_at=node.last_report_at,
        reason=_reason(fleet, node),
    )


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of all fleets by fleet and name: those that need a look, and the first of the others."""

    troubled: tuple[NodeRow, ...]
    ready: tuple[NodeRow, ...]
    ready_count: int


def _is(node: NodeMap, state: str) -> bool:
    """Whether a node is in this state, as its badge has it."""
    cordoned = node.cordoned and node.state is NodeState.READY
    return state in ("", "cordoned" if cordoned else node.state.value)


def nodes_of(fleets: Sequence[FleetMap], *, every: bool, state: str = "") -> Nodes:
    """The table's rows; only those that are shown are worked out."""
    found = [(fleet, node) for fleet in fleets for domain in fleet.domains for node in domain.nodes if _is(node, state)]
    found.sort(key=lambda each: (each[0].fleet, each[1].node))
    ready = [each for each in found if _usable(each[1])]
    troubled = (_node_row(fleet, node) for fleet, node in found if not _usable(node))
    shown = ready if every else ready[:_READY_SHOWN]
    return Nodes(tuple(troubled), tuple(_node_row(fleet, node) for fleet, node in shown), len(ready))


def tenants(request: PageRequest) -> dict[str, Tenant]:
    """Every unit that this person may see with its release, and whether that is on trial."""
    seen, bases = seen_by(request.user), stage_bases()
    return {
        unit: Tenant(release, stage in bases and release != bases[stage])
        for stage, units in unit_releases().items()
        if stage.partition("/")[0] in seen
        for unit, release in units.items()
    }


def _headline(blocks: Sequence[Block]) -> str:
    gpus, free = sum(item.view.gpus for item in blocks), sum(item.view.free for item in blocks)
    used, unusable = sum(item.used for item in blocks), sum(item.unusable for item in blocks)
    tail = f", {unusable:,} not usable" if unusable else ""
    return f"{words.plural(len(blocks), 'fleet')}, {gpus:,} GPUs: {used:,} in use, {free:,} free{tail}"


def _largest_hole(fleets: Sequence[FleetMap]) -> DomainMap | None:
    domains = [domain for fleet in fleets for domain in fleet.domains if domain.free]
    return max(domains, key=lambda domain: domain.free, default=None)


@require_safe
@page
def fleets(request: PageRequest) -> HttpResponse:
    """All fleets as maps."""
    maps, who = access_fleet_maps(request.user), tenants(request)
    wanted = filters.read(request, {"fleet": [fleet.fleet for fleet in maps], "state": words.NODE_STATES, "nodes": ("all",)})
    shown = [fleet for fleet in maps if wanted["fleet"] in ("", fleet.fleet)]
    blocks = [block(fleet, who) for fleet in shown]
    every = bool(wanted["nodes"] or wanted["state"])
    return show(
        request,
        "fleets",
        {
            "title": "Fleets",
            "section": "fleets",
            "now": datetime.now(UTC),
            "blocks": blocks,
            "heavy": any(block.dense for block in blocks),
            "headline": _headline(blocks),
            "hole": _largest_hole(shown),
            "nodes": nodes_of(shown, every=every, state=wanted["state"]),
            "filter": wanted,
            "fleet_menu": [(fleet.fleet, fleet.fleet) for fleet in maps],
            "state_menu": [(state, badge.text) for state, badge in words.NODE_STATES.items()],
            "every": every,
        },
    )
