"""NVML as its C functions: NVIDIA's own binding calls these in place of the library's, and fills its structures from them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

UNKNOWN = ctypes.c_ulonglong(-1).value  # NVML_VALUE_NOT_AVAILABLE


@dataclass
class FakeGpu:
    """One GPU; None: NVML_ERROR_NOT_SUPPORTED, which nvidia-smi prints as N/A."""

    uuid: str
    name: str = "NVIDIA GB200"
    total_bytes: int = 192 * 10**9
    used_bytes: int | None = 0
    ecc: int | None = 0
    rows: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    retiring: int | None = None
    mig: int | None = 0
    cluster: bytes = bytes(16)
    clique: int = 0
    fabric_state: int = pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
    fabric_status: int = 0
    processes: list[tuple[int, int]] = field(default_factory=list)  # pid, bytes
    lost: bool = False


@dataclass
class FakeNvml:
    """The library's state. `present` is what the bus has, in its order."""

    present: list[FakeGpu]
    xids: list[tuple[FakeGpu, int]] = field(default_factory=list)
    loaded: bool = True
    reloads: int = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the binding call this one."""
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", self.function)
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: pynvml._nvmlCheckReturn(self.init()))

    def init(self) -> int:
        self.reloads += 1
        return int(pynvml.NVML_SUCCESS if self.loaded else pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    def function(self, name: str) -> Callable[..., int]:
        found = getattr(self, "c_" + name.removeprefix("nvml").removesuffix("_v2").removesuffix("_v3"), None)
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

        def call(*arguments: Any) -> int:
            if not self.loaded:
                return int(pynvml.NVML_ERROR_UNINITIALIZED)
            answer = found(*arguments)
            return int(pynvml.NVML_SUCCESS if answer is None else answer)

        return call

    def _gpu(self, handle: Any) -> FakeGpu:
        number = ctypes.cast(handle, ctypes.c_void_p).value
        assert number is not None
        return self.present[number - 1]

    def c_DeviceGetCount(self, out: Any) -> None:  # noqa: N802  # the C functions' own names
        out._obj.value = len(self.present)

    def c_DeviceGetHandleByIndex(self, index: Any, out: Any) -> int | None:  # noqa: N802
        if self.present[index.value].lost:
            return int(pynvml.NVML_ERROR_GPU_IS_LOST)
        ctypes.cast(ctypes.pointer(out._obj), ctypes.POINTER(ctypes.c_void_p))[0] = index.value + 1
        return None

    def c_DeviceGetUUID(self, handle: Any, text: Any, size: Any) -> None:  # noqa: N802
        text.value = self._gpu(handle).uuid.encode()

    def c_DeviceGetName(self, handle: Any, text: Any, size: Any) -> None:  # noqa: N802
        text.value = self._gpu(handle).name.encode()

    def c_SystemGetDriverVersion(self, text: Any, size: Any) -> None:  # noqa: N802
        text.value = b"580.95.05"

    def c_SystemGetCudaDriverVersion(self, out: Any) -> None:  # noqa: N802
        out._obj.value = 13000

    def c_DeviceGetMemoryInfo(self, handle: Any, out: Any) -> int | None:  # noqa: N802
        gpu = self._gpu(handle)
        if gpu.used_bytes is None:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        out._obj.total, out._obj.used, out._obj.free = gpu.total_bytes, gpu.used_bytes, gpu.total_bytes - gpu.used_bytes
        return None

    def c_DeviceGetTotalEccErrors(self, handle: Any, kind: Any, counter: Any, out: Any) -> int | None:  # noqa: N802
        assert (kind.value, counter.value) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return _fill(self._gpu(handle).ecc, out)

    def c_DeviceGetRemappedRows(self, handle: Any, *outs: Any) -> int | None:  # noqa: N802
        rows = self._gpu(handle).rows
        if rows is None:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        for out, value in zip(outs, rows, strict=True):
            out._obj.value = value
        return None

    def c_DeviceGetRetiredPagesPendingStatus(self, handle: Any, out: Any) -> int | None:  # noqa: N802
        return _fill(self._gpu(handle).retiring, out)

    def c_DeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int | None:  # noqa: N802
        return _fill(self._gpu(handle).mig, current)

    def c_DeviceGetGpuFabricInfoV(self, handle: Any, out: Any) -> None:  # noqa: N802
        gpu, info = self._gpu(handle), out._obj
        assert info.version == pynvml.nvmlGpuFabricInfo_v2
        ctypes.memmove(info.clusterUuid, gpu.cluster, 16)
        info.cliqueId, info.state, info.status = gpu.clique, gpu.fabric_state, gpu.fabric_status

    def c_DeviceGetComputeRunningProcesses(self, handle: Any, count: Any, out: Any) -> int | None:  # noqa: N802
        processes = self._gpu(handle).processes
        if out is None and processes:
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        count._obj.value = len(processes)
        for at, (pid, used) in enumerate(processes):
            out[at].pid, out[at].usedGpuMemory = pid, used
        return None

    def c_EventSetCreate(self, out: Any) -> None:  # noqa: N802
        return None

    def c_DeviceRegisterEvents(self, handle: Any, kinds: Any, events: Any) -> None:  # noqa: N802
        assert kinds.value == pynvml.nvmlEventTypeXidCriticalError

    def c_EventSetWait(self, events: Any, out: Any, timeout: Any) -> int | None:  # noqa: N802
        if not self.xids:
            return int(pynvml.NVML_ERROR_TIMEOUT)
        gpu, xid = self.xids.pop(0)
        event = out._obj
        number = self.present.index(gpu) + 1
        ctypes.cast(ctypes.pointer(event), ctypes.POINTER(ctypes.c_void_p))[0] = number  # `device` is its first field
        event.eventType, event.eventData = pynvml.nvmlEventTypeXidCriticalError, xid
        return None


def _fill(value: int | None, out: Any) -> int | None:
    if value is None:
        return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
    out._obj.value = value
    return None
