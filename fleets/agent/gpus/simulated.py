"""GPUs of simulated nodes: sound until a file says otherwise, and judged by the same rules as real ones."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from denvweb.core import wire
from denvweb.core.errors import InvalidError
from fleets.agent.gpus import health
from fleets.agent.gpus.base import Inventory
from fleets.agent.gpus.health import GpuProcess, Reading
from fleets.domain.hardware import GPUS
from fleets.domain.protocol import GpuReport

log = logging.getLogger(__name__)

FAULTS_FILE = "gpu-faults.json"
_OTHERS_PID = 0  # no process has it, so it is nobody's engine


@dataclass(frozen=True, slots=True)
class GpuFault:
    """What is wrong with one simulated GPU."""

    xid: int = 0
    ecc_uncorrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    lost: bool = False
    mig: bool = False
    foreign_bytes: int = 0


Faults = dict[str, dict[str, GpuFault]]  # by node, then by the GPU's number


class FaultFile:
    """`{"NODE": {"2": {"xid": 79}}}`, read again when it changes; without it all GPUs are sound."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._faults: Faults = {}

    def of(self, node: str) -> dict[str, GpuFault]:
        """The faults of a node by the GPU's number."""
        try:
            stat = self._path.stat()
        except OSError:
            self._seen, self._faults = None, {}
            return {}
        if (stat.st_mtime_ns, stat.st_size) != self._seen:
            self._seen = (stat.st_mtime_ns, stat.st_size)
            try:
                self._faults = wire.decode(self._path.read_bytes(), Faults)
            except (InvalidError, OSError) as error:
                log.warning("%s says nothing of use, and the faults stay as they were: %s", self._path, error)
        return self._faults.get(node, {})


@dataclass(frozen=True, slots=True)
class SimulatedGpus:
    """GpuDriver of one simulated node. Faults come and go with the file, as a reset would end them on a real GPU."""

    node: str
    kind: str
    count: int
    faults: FaultFile
    every_s: float = 2.0
    blocking: bool = False

    def inventory(self) -> Inventory:
        """As the flag says it, with the memory of the kind."""
        kind = GPUS.get(self.kind)
        return Inventory(kind=self.kind, count=self.count, memory_bytes=int(kind.memory_bytes) if kind else 0)

    def read(self, own_sessions: Collection[int]) -> tuple[GpuReport, ...]:
        """By the file of faults."""
        faults = self.faults.of(self.node)
        return tuple(health.report(index, _reading(index, faults.get(str(index))), ()) for index in range(self.count))

    def devices(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """As they are numbered."""
        return tuple(gpus)


def _reading(index: int, fault: GpuFault | None) -> Reading:
    if fault is None:
        return Reading()
    others = (GpuProcess(_OTHERS_PID, fault.foreign_bytes),) if fault.foreign_bytes else ()
    return Reading(
        lost="not on the bus any more" if fault.lost else "",
        xids=(fault.xid,) if fault.xid else (),
        ecc_uncorrected=fault.ecc_uncorrected,
        remap_pending=fault.remap_pending,
        remap_failed=fault.remap_failed,
        mig=fault.mig,
        processes=others,
    )
