"""`parse`: the text of a spec file as values, or every mistake in it."""

from __future__ import annotations

from releases.domain import source
from releases.domain.source import SpecError
from releases.domain.spec_file import read_file
from releases.domain.spec_types import (
    Approval,
    KvCacheSpec,
    Mode,
    PoolTopology,
    ReleaseFile,
    ReleaseSpec,
    RolloutPolicy,
    Scaling,
    StageSpec,
    Topology,
)

__all__ = [
    "Approval",
    "KvCacheSpec",
    "Mode",
    "PoolTopology",
    "ReleaseFile",
    "ReleaseSpec",
    "RolloutPolicy",
    "Scaling",
    "SpecError",
    "StageSpec",
    "Topology",
    "parse",
]


def parse(text: str | bytes) -> ReleaseFile | tuple[SpecError, ...]:
    """The file as values, or all its mistakes in the order of their places; never raises.

    A mistake prints itself with the name of the file: `error.text("denv.yaml")`. A text that is not YAML has one mistake.
    """
    tree = source.read(text)
    return (tree,) if isinstance(tree, SpecError) else read_file(tree)
