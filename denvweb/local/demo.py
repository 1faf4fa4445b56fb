"""What `denv up --demo` adds: two simulated fleets, a model in production, and a real trace as its traffic."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DemoFleet:
    """A simulated fleet: `simulated` is the agent's own flag, `port_count` what all its nodes need."""

    name: str
    simulated: str
    port_count: int


FLEETS = (
    DemoFleet("gb200-use1", "fleet=gb200-use1,kind=GB200,domains=3,nodes=18,gpus=4,span", 54 * 48),
    DemoFleet("h200-use1", "fleet=h200-use1,kind=H200,domains=4,nodes=1,gpus=8", 4 * 96),
)
STAGE = "ds-flash/prod-us"
SPEED = 1.0  # of the recorded traffic: about 3 requests a second


def release_text() -> str:
    """The demo's release file."""
    return files("denvweb.local").joinpath("data/demo.yaml").read_text(encoding="utf-8")


def trace_path() -> Path:
    """The trace that the demo's traffic repeats."""
    return Path(str(files("denvweb.local").joinpath("data/mooncake_conversation.jsonl")))
