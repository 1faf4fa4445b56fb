"""A domain as a map: a column is a node, a cell a GPU, so that a lost node is a lost column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from django.utils.safestring import SafeString, mark_safe

from fleets.domain.types import NodeState, Role
from fleets.domain.views import DomainMap, GpuCell, NodeMap
from frontend.words import number_of, plural

PITCH = 16
CELL = 14
ROWS_MAX = 4  # a node of 8 GPUs takes two columns of four

_LETTERS = {Role.PREFILL: "P", Role.DECODE: "D", Role.AGGREGATED: "A"}


@dataclass(frozen=True, slots=True)
class Picture:
    """A domain ready for its page."""

    name: str  # `d01`
    domain: str  # `gb200-use1/d01`
    viewbox: str
    svg: SafeString
    label: str
    tone: str
    headline: str  # `36 used, 32 free`
    few: bool  # so few columns that the map must not fill the page
    residents: tuple[Resident, ...]
    others: str  # `8 GPUs in use by models that are not yours to see`
    troubles: str  # `n07 lost`
    tile: str  # kind of its tile in the dense view
    canary: bool


@dataclass(frozen=True, slots=True)
class Resident:
    """A serving unit in a domain."""

    stage: str
    slot: int
    release: str
    canary: bool


@dataclass(frozen=True, slots=True)
class Tenant:
    """A unit by its own release: a pool that a release left alone still bears the older one's name."""

    release: str
    canary: bool


Tenants = Mapping[str, Tenant]  # by unit


def _tenant(cell: GpuCell, tenants: Tenants) -> Tenant:
    return tenants.get(cell.unit) or Tenant(cell.release, canary=False)


def _kind(node: NodeMap, cell: GpuCell, canary: bool) -> str:
    if node.state is NodeState.LOST or cell.state == "broken":
        return "lost"
    if node.state is NodeState.SUSPECT:
        return "susp"
    if cell.state == "used" and cell.role is None:
        return "cord"  # kept for the replica that comes next
    if cell.state == "used":
        return ("P" if cell.role is Role.PREFILL else "D") + ("c" if canary else "b")
    if cell.state == "foreign" or node.cordoned or node.state is NodeState.NEW:
        return "cord"
    return "free"


def _mark(kind: str, cell: GpuCell, x: int, y: int, first_row: bool) -> str:
    if kind == "lost":
        return f'<path class="x" d="M{x + 4},{y + 4}l6,6m0,-6l-6,6"/>'
    middle = f'x="{x + 7}" y="{y + 10.4}"'
    if kind == "susp" and first_row:
        return f'<text class="tS" {middle}>?</text>'
    if cell.first and cell.role and kind[0] in "PD":
        return f'<text class="t{kind[0]}" {middle}>{_LETTERS[cell.role]}{cell.ordinal + 1}</text>'
    return ""


def _cells(domain: DomainMap, tenants: Tenants) -> Iterator[str]:
    column = 0
    for node in domain.nodes:
        for place, cell in enumerate(node.cells):
            x, y = (column + place // ROWS_MAX) * PITCH, place % ROWS_MAX * PITCH
            kind = _kind(node, cell, _tenant(cell, tenants).canary)
            yield f'<rect class="g {kind}" x="{x}" y="{y}" width="{CELL}" height="{CELL}"/>'
            if kind.endswith("c") and not cell.first:
                yield f'<rect class="hc" x="{x}" y="{y}" width="{CELL}" height="{CELL}"/>'
            yield _mark(kind, cell, x, y, place % ROWS_MAX == 0)
        column += _columns(node)


def _columns(node: NodeMap) -> int:
    return max(1, -(-len(node.cells) // ROWS_MAX))


def _residents(domain: DomainMap, tenants: Tenants) -> tuple[Resident, ...]:
    found = {}
    for cell in (cell for node in domain.nodes for cell in node.cells if cell.stage):
        tenant = _tenant(cell, tenants)
        found[cell.stage, cell.slot, cell.unit] = Resident(cell.stage, cell.slot, tenant.release, tenant.canary)
    return tuple(found[key] for key in sorted(found))


def _troubles(domain: DomainMap) -> tuple[str, str]:
    """The tone and the sentence of what is wrong."""
    lost = [node.node.rpartition("-")[2] for node in domain.nodes if node.state is NodeState.LOST]
    silent = [node.node.rpartition("-")[2] for node in domain.nodes if node.state is NodeState.SUSPECT]
    cordoned = [node.node.rpartition("-")[2] for node in domain.nodes if node.cordoned]
    broken = sum(cell.state == "broken" for node in domain.nodes for cell in node.cells)
    parts = [f"{', '.join(names)} {word}" for names, word in ((lost, "lost"), (silent, "silent"), (cordoned, "cordoned")) if names]
    if broken:
        parts.append(f"{plural(broken, 'GPU')} broken")
    return "bad" if lost or broken else "warn" if silent else "ok", "; ".join(parts)


def _tile(tone: str, residents: tuple[Resident, ...], others: str) -> str:
    if tone != "ok":
        return {"bad": "x", "warn": "s"}[tone]
    return "f" if not residents and not others else "c" if any(resident.canary for resident in residents) else "b"


def draw(domain: DomainMap, tenants: Tenants, *, cells: bool = True) -> Picture:
    """The picture of a domain whose units are `tenants`; without `cells` only what its tile says."""
    columns = sum(_columns(node) for node in domain.nodes)
    rows = max((min(ROWS_MAX, len(node.cells)) for node in domain.nodes), default=1)
    used = sum(cell.state == "used" for node in domain.nodes for cell in node.cells)
    residents = _residents(domain, tenants)
    nameless = sum(cell.state == "used" and not cell.stage for node in domain.nodes for cell in node.cells)
    others = f"{plural(nameless, 'GPU')} in use by models that are not yours to see" if nameless else ""
    tone, troubles = _troubles(domain)
    name = domain.domain.rpartition("/")[2]
    named = [f"{r.stage} unit {r.slot}, release {number_of(r.release)}{' on trial' if r.canary else ''}" for r in residents]
    who = "; ".join([*named, *([others] if others else [])])
    headline = ", ".join(part for part in (f"{used} used" if used else "", f"{domain.free} free" if domain.free else "") if part)
    return Picture(
        name=name,
        domain=domain.domain,
        viewbox=f"-1 -1 {columns * PITCH} {rows * PITCH}",
        # Only numbers and fixed words were put together above: nothing that anybody typed.
        svg=mark_safe("".join(_cells(domain, tenants)) if cells else ""),
        label=f"{name}: {who or 'free'}{'; ' + troubles if troubles else ''}",
        tone=tone,
        headline=headline or "0 free",
        few=columns <= 6,
        residents=residents,
        others=others,
        troubles=troubles,
        tile=_tile(tone, residents, others),
        canary=any(resident.canary for resident in residents),
    )
