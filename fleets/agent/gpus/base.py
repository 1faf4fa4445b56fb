"""The port through which an agent looks at its GPUs, and the driver for those that somebody vouches for."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from fleets.domain.protocol import GpuReport


@dataclass(frozen=True, slots=True)
class Inventory:
    """GPUs of one kind. What the driver does not say is 0 or empty."""

    kind: str
    count: int
    memory_bytes: int = 0  # of one GPU
    fabric: str = ""  # name of the NVLink fabric that they share with other nodes; empty: the node is a domain of its own
    driver_version: str = ""  # `580.95.05`
    cuda_version: str = ""  # the newest that the driver runs, `13.0`


class GpuDriver(Protocol):
    """Where GPUs are looked up. Both calls may block for seconds where `blocking` says so: run them outside the event loop."""

    @property
    def every_s(self) -> float:
        """Seconds between two looks; infinite when the answer never changes."""

    @property
    def blocking(self) -> bool:
        """Whether a look asks hardware, and may hang with it."""

    def inventory(self) -> Inventory:
        """Kind and number; UnavailableError when they cannot be found out."""

    def read(self, own_sessions: Collection[int]) -> tuple[GpuReport, ...]:
        """Health, and memory held by processes outside `own_sessions` (each engine leads a session of its own)."""

    def devices(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """The numbers that CUDA gives to these GPUs now: a GPU that is gone moves those behind it up, and ours must not move."""


@dataclass(frozen=True, slots=True)
class StatedGpus:
    """GPUs that somebody vouches for, where no driver can be asked."""

    kind: str
    count: int
    every_s: float = math.inf
    blocking: bool = False

    def inventory(self) -> Inventory:
        """What was stated."""
        return Inventory(kind=self.kind, count=self.count)

    def read(self, own_sessions: Collection[int]) -> tuple[GpuReport, ...]:
        """All healthy."""
        return tuple(GpuReport(index=index) for index in range(self.count))

    def devices(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """As they are numbered."""
        return tuple(gpus)
