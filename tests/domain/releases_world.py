"""What tests of releases start from: the demo's fleets, and the product's release on them."""

from __future__ import annotations

from fleets.domain.types import DomainView, FleetView, NodeView
from releases.catalog import catalog
from releases.domain.dry_run import StageResult, World, check_release, check_stage
from releases.domain.spec import ReleaseFile, parse
from releases.domain.views import FindingView

DS_FLASH = """\
release:
  model: ds-flash
  weights: hf://deepseek-ai/DeepSeek-V4.1-Flash-1017@c41a7e2
  recipe: deepseek-v4.1-flash/deepinfer@3
  topology: { prefill: { gpus: 4, replicas: 2 }, decode: { gpus: 64, replicas: 1 } }
stages:
  prod-us:
    fleets: [gb200-use1]
    replicas: 2
"""


def fleet(name: str, kind: str, domains: int, nodes: int, gpus: int, *, simulated: bool = True) -> FleetView:
    """A fleet with everything free; a domain of one node is an HGX, whose fabric ends there."""
    return FleetView(
        name=name,
        gpu_kind=kind,
        domains=tuple(
            DomainView(
                f"{name}/d{domain:02}",
                tuple(NodeView(f"{name}-d{domain:02}-n{node:02}", gpus, tuple(range(gpus))) for node in range(1, nodes + 1)),
            )
            for domain in range(1, domains + 1)
        ),
        fabric_spans_nodes=nodes > 1,
        simulated=simulated,
    )


GB200 = fleet("gb200-use1", "GB200", 3, 18, 4)
H200 = fleet("h200-use1", "H200", 4, 1, 8)


def world(*fleets: FleetView) -> World:
    """The demo's fleets, or these."""
    return World(catalog(), fleets or (GB200, H200))


def file_of(text: str) -> ReleaseFile:
    """A file without mistakes."""
    file = parse(text)
    assert isinstance(file, ReleaseFile), [error.text() for error in file]
    return file


def look(text: str, seen: World | None = None, number: int = 1) -> tuple[tuple[FindingView, ...], StageResult]:
    """The findings of the release, and what came of its first stage."""
    file, seen = file_of(text), seen or world()
    return check_release(file, "", seen), check_stage(file, file.stages[0], number, seen)


def codes(text: str, seen: World | None = None) -> dict[str, FindingView]:
    """Every finding but the fine ones, by code."""
    release, stage = look(text, seen)
    return {finding.code: finding for finding in (*release, *stage.findings) if finding.severity != "ok"}
