"""GPUs by nvidia-smi, where NVML's binding is not installed: what it prints has no Xid errors and no fabric."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from denvweb.core.errors import UnavailableError
from fleets.agent.gpus.base import Inventory
from fleets.domain.protocol import GpuReport

_SMI_TIMEOUT_S = 20.0
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class NvidiaSmi:
    """Asks NVIDIA's own tool."""

    path: str
    every_s: float = 15.0
    blocking: bool = True

    @classmethod
    def find(cls) -> NvidiaSmi | None:
        """The tool on the path, or None."""
        path = shutil.which("nvidia-smi")
        return cls(path) if path else None

    def inventory(self) -> Inventory:
        """Kind and number of what the driver lists; a node of mixed kinds is refused."""
        names = [row[1] for row in self._rows("--query-gpu=index,name")]
        kinds = {gpu_kind(name) for name in names}
        if len(kinds) != 1:
            raise UnavailableError(f"nvidia-smi lists {', '.join(sorted(set(names))) or 'no GPU'}: a node needs GPUs of one kind")
        return Inventory(kind=kinds.pop(), count=len(names))

    def read(self, own_sessions: Collection[int]) -> tuple[GpuReport, ...]:
        """A GPU with uncorrected memory errors since its driver was loaded is unhealthy."""
        gpus = self._rows("--query-gpu=index,uuid,ecc.errors.uncorrected.volatile.total")
        apps = self._rows("--query-compute-apps=gpu_uuid,pid,used_memory")
        own_pids = {int(pid) for _, pid, _ in apps if pid.isdigit() and _session(int(pid)) in own_sessions}
        return gpu_reports(gpus, apps, own_pids)

    def devices(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """As they are numbered."""
        return tuple(gpus)

    def _rows(self, query: str) -> list[list[str]]:
        argv = [self.path, query, "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise UnavailableError(f"{' '.join(argv)} failed: {error}") from error
        return parse_csv(done.stdout)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None  # it ended since nvidia-smi saw it


def parse_csv(text: str) -> list[list[str]]:
    """Cells of nvidia-smi's CSV (comma and blank between cells, no quoting)."""
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]


def gpu_kind(name: str) -> str:
    """`GB200` of `NVIDIA GB200`, `H100` of `NVIDIA H100 80GB HBM3`, `A100` of `NVIDIA A100-SXM4-80GB`."""
    words = [word for word in name.replace("-", " ").split() if word not in {"NVIDIA", "Tesla"}]
    return words[0] if words else name


def gpu_reports(gpus: list[list[str]], apps: list[list[str]], own_pids: Collection[int]) -> tuple[GpuReport, ...]:
    """Reports of rows `index, uuid, uncorrected errors` and `uuid, pid, used MiB`; `[N/A]` counts as nothing known."""
    foreign: dict[str, int] = {}
    for uuid, pid, used_mib in apps:
        if pid.isdigit() and used_mib.isdigit() and int(pid) not in own_pids:
            foreign[uuid] = foreign.get(uuid, 0) + int(used_mib) * _MIB
    reports = []
    for index, uuid, errors in gpus:
        broken = errors.isdigit() and int(errors) > 0
        detail = f"{errors} uncorrected memory errors since the driver was loaded" if broken else ""
        reports.append(GpuReport(index=int(index), healthy=not broken, foreign_bytes=foreign.get(uuid, 0), detail=detail))
    return tuple(reports)
