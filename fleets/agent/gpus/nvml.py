"""GPUs by NVML, NVIDIA's own library, through its own binding (`nvidia-ml-py`); looked for only where it is installed."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from denvweb.core.errors import UnavailableError
from fleets.agent.gpus import health
from fleets.agent.gpus.base import Inventory
from fleets.agent.gpus.health import GpuProcess, Reading
from fleets.agent.gpus.memory import GpuMemory
from fleets.agent.gpus.smi import gpu_kind
from fleets.domain.protocol import GpuReport

log = logging.getLogger(__name__)

_LOST = "not on the bus any more"
_EVENTS_MOST = 256  # taken at one look; the rest comes with the next


@dataclass(frozen=True, slots=True)
class _Fabric:
    name: str = ""
    trouble: str = ""


class Nvml:
    """GpuDriver of this machine. GPUs go by their UUIDs; what one of them does not tell is not known, and no error."""

    every_s = 5.0
    blocking = True

    def __init__(self, library: ModuleType, memory: GpuMemory) -> None:
        self._nvml: Any = library
        # An old driver lacks newer functions, and the binding has an error of its own for that.
        self._no_answer = (library.NVMLError, getattr(library, "NVMLLibraryMismatchError", library.NVMLError), AttributeError)
        self._memory = memory
        self._events: Any = None  # NVML's event set; None: not listening
        self._order: tuple[str, ...] = ()  # UUIDs as NVML and CUDA number them now

    @classmethod
    def find(cls, memory: GpuMemory) -> Nvml | None:
        """The driver where the binding is installed and NVML starts, else None."""
        try:
            library = import_module("pynvml")
        except ImportError:
            return None
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            log.info("NVML does not start here: %s", error)
            return None
        return cls(library, memory)

    def inventory(self) -> Inventory:
        """Kind, number, memory and fabric; a node of mixed kinds is refused. A GPU that is lost now keeps its number."""
        handles = self._handles()
        found = list(handles.values())
        kinds = {gpu_kind(name) for handle in found if (name := self._ask("nvmlDeviceGetName", handle))}
        if len(kinds) != 1:
            raise UnavailableError(f"NVML lists {', '.join(sorted(kinds)) or 'no GPU'}: a node needs GPUs of one kind")
        fabrics = {self._fabric(handle).name for handle in found}
        if len(fabrics) > 1:
            log.warning(
                "the GPUs of this node are of different NVLink fabrics, so it is taken for a domain of its own; --domain overrides it"
            )
        memory = [info.total for handle in found if (info := self._ask("nvmlDeviceGetMemoryInfo", handle)) is not None]
        cuda = self._ask("nvmlSystemGetCudaDriverVersion_v2")
        return Inventory(
            kind=kinds.pop(),
            count=len(self._memory.uuids),
            memory_bytes=min(memory, default=0),
            fabric=fabrics.pop() if len(fabrics) == 1 else "",
            driver_version=self._ask("nvmlSystemGetDriverVersion") or "",
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        )

    def read(self, own_sessions: Collection[int]) -> tuple[GpuReport, ...]:
        """Health and foreign memory of every GPU that this node ever had, by its number."""
        handles = self._handles()
        self._listen(handles)
        readings = [self._reading(uuid, handles[uuid]) if uuid in handles else self._gone(uuid) for uuid in self._memory.uuids]
        pids = {process.pid for reading in readings for process in reading.processes}
        own_pids = {pid for pid in pids if session_of(pid) in own_sessions}
        return tuple(health.report(number, reading, own_pids) for number, reading in enumerate(readings))

    def devices(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """Numbers as CUDA has them in the order of the bus; those of GPUs that are gone are left out."""
        uuids = [self._memory.uuids[number] for number in gpus if number < len(self._memory.uuids)]
        return tuple(self._order.index(uuid) for uuid in uuids if uuid in self._order)

    def _handles(self) -> dict[str, Any]:
        """By UUID; the driver may have been reloaded since the last look, which ends all that was opened before."""
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError:
            count = self._restart()
        handles = {}
        for index in range(count):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            uuid = None if handle is None else self._ask("nvmlDeviceGetUUID", handle)
            if uuid is not None:
                handles[uuid] = handle
        self._order = tuple(handles)
        self._memory.number(health.assigned(self._memory.uuids, self._order))
        return handles

    def _restart(self) -> int:
        nvml = self._nvml
        self._events = None
        try:
            nvml.nvmlInit()
            return int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            raise UnavailableError(f"the GPU driver does not answer: {error}") from error

    def _ask(self, function: str, *arguments: Any) -> Any:
        """NVML's answer; None when the GPU, the driver or this version of the library has none."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._no_answer:
            return None

    def _gone(self, uuid: str) -> Reading:
        return Reading(uuid=uuid, lost=f"{uuid} is {_LOST}", xids=self._memory.xids(uuid))

    def _reading(self, uuid: str, handle: Any) -> Reading:
        nvml = self._nvml
        try:
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                return self._gone(uuid)
            info = None
        uncorrected = self._ask("nvmlDeviceGetTotalEccErrors", handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        rows = self._ask("nvmlDeviceGetRemappedRows", handle)
        retiring = self._ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
        mig = self._ask("nvmlDeviceGetMigMode", handle)
        return Reading(
            uuid=uuid,
            xids=self._memory.xids(uuid),
            ecc_uncorrected=uncorrected,
            remap_pending=bool(rows[2]) if rows else None,
            remap_failed=bool(rows[3]) if rows else None,
            retire_pending=None if retiring is None else bool(retiring),
            mig=bool(mig[0]) if mig else None,
            fabric=self._fabric(handle).trouble,
            used_bytes=None if info is None else int(info.used),
            processes=tuple(self._processes(handle)),
        )

    def _processes(self, handle: Any) -> Iterator[GpuProcess]:
        seen = set()
        for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            for process in self._ask(function, handle) or ():
                if process.pid not in seen:
                    seen.add(process.pid)
                    yield GpuProcess(process.pid, process.usedGpuMemory)

    def _fabric(self, handle: Any) -> _Fabric:
        """Cluster UUID and clique; GPUs without a fabric of several nodes say zeros, or nothing (older drivers)."""
        nvml = self._nvml
        try:
            info = nvml.c_nvmlGpuFabricInfoV_t()
            info.version = nvml.nvmlGpuFabricInfo_v2
            nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        except self._no_answer:
            return _Fabric()
        cluster = bytes(info.clusterUuid)
        if not any(cluster) or info.state == nvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
            return _Fabric()
        name = f"nvl-{cluster.hex()[:8]}-{info.cliqueId}"
        if info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status:
            return _Fabric(name, f"its NVLink fabric could not be joined (status {info.status})")
        if info.state != nvml.NVML_GPU_FABRIC_STATE_COMPLETED:
            return _Fabric(name, "it has not joined its NVLink fabric yet")
        return _Fabric(name)

    # ---- Xid errors: told once, to who listens ----

    def _listen(self, handles: dict[str, Any]) -> None:
        """Keep what came since the last look; listening starts with the first look, and again after a driver's restart."""
        nvml = self._nvml
        try:
            if self._events is None:
                self._events = self._register(handles)
            for _ in range(_EVENTS_MOST):
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                    self._take_xid(event)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_UNINITIALIZED:
                self._events = None
            elif error.value not in (nvml.NVML_ERROR_TIMEOUT, nvml.NVML_ERROR_NOT_SUPPORTED):
                log.debug("no Xid errors can be read: %s", error)

    def _register(self, handles: dict[str, Any]) -> Any:
        nvml = self._nvml
        events = nvml.nvmlEventSetCreate()
        for handle in handles.values():
            self._ask("nvmlDeviceRegisterEvents", handle, nvml.nvmlEventTypeXidCriticalError, events)
        return events

    def _take_xid(self, event: Any) -> None:
        uuid = self._ask("nvmlDeviceGetUUID", event.device)  # one that fell off the bus says no more, and is missed by its UUID
        if uuid is not None:
            log.warning("GPU %s had Xid %d", uuid, event.eventData)
            self._memory.add_xid(uuid, int(event.eventData))


def session_of(pid: int) -> int | None:
    """The session that a process is of; None when it ended since it was seen."""
    try:
        return os.getsid(pid)
    except OSError:
        return None
