"""From what a driver says of a GPU to whether it may be used, and why not. Pure: the simulated driver is judged by the same rules."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from fleets.domain.protocol import GpuReport

# Xid errors that a program's own fault raises on a sound GPU (NVIDIA, "XID Errors"; its Kubernetes device plugin skips the same).
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
_XID_WORDS = {
    48: "double-bit memory error",
    62: "micro-controller halted",
    63: "memory row remapped",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "fell off the bus",
    92: "many single-bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GPU firmware does not answer",
    120: "GPU firmware error",
    149: "NVLink fatal error",
}


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with memory on a GPU; None where the driver does not say how much (another container's, MIG)."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU as its driver sees it now. None: the driver does not say (`N/A`), which counts as no trouble."""

    uuid: str = ""
    lost: str = ""  # why it cannot be asked at all
    xids: tuple[int, ...] = ()  # since the machine booted
    ecc_uncorrected: int | None = None  # since the driver was loaded
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retire_pending: bool | None = None
    mig: bool | None = None
    fabric: str = ""  # what is wrong with its NVLink fabric
    used_bytes: int | None = None
    processes: tuple[GpuProcess, ...] = ()


def report(index: int, reading: Reading, own_pids: Collection[int]) -> GpuReport:
    """What the control plane is told of one GPU."""
    said = list(troubles(reading))
    return GpuReport(index=index, healthy=not said, foreign_bytes=foreign_bytes(reading, own_pids), detail="; ".join(said))


def troubles(reading: Reading) -> Iterator[str]:
    """Each reason why the GPU may not be used, with what ends it."""
    if reading.lost:
        yield reading.lost
    for xid in sorted(set(reading.xids) - APPLICATION_XIDS):
        yield f"Xid {xid}" + (f" ({_XID_WORDS[xid]})" if xid in _XID_WORDS else "")
    if reading.ecc_uncorrected:
        yield f"{reading.ecc_uncorrected} uncorrected memory errors since the driver was loaded"
    if reading.remap_failed:
        yield "a memory row could not be remapped: the GPU is to be replaced"
    if reading.remap_pending or reading.retire_pending:
        yield "faulty memory is to be set aside at the next reset of the GPU"
    if reading.mig:
        yield "cut up by MIG, and a replica takes whole GPUs (`nvidia-smi -mig 0`)"
    if reading.fabric:
        yield reading.fabric


def foreign_bytes(reading: Reading, own_pids: Collection[int]) -> int:
    """Memory of processes that are not denv's. One whose memory is not told has what is used beyond all that are told."""
    foreign = [process for process in reading.processes if process.pid not in own_pids]
    told = sum(process.memory_bytes or 0 for process in foreign)
    if not any(process.memory_bytes is None for process in foreign) or reading.used_bytes is None:
        return told
    own = [process.memory_bytes for process in reading.processes if process.pid in own_pids]
    if None in own:  # how much of the rest is whose cannot be known
        return told
    return max(told, reading.used_bytes - sum(size for size in own if size is not None))


def assigned(known: Sequence[str], present: Sequence[str]) -> tuple[str, ...]:
    """UUIDs by the node's own numbers: a GPU keeps its number for ever, a new one takes that of one that is gone.

    A GPU that fell off the bus is not enumerated after the next boot, and those behind it move up; claims name numbers.
    """
    slots = list(known)
    gone = [number for number, uuid in enumerate(slots) if uuid not in present]
    for uuid in present:
        if uuid in slots:
            continue
        if gone:
            slots[gone.pop(0)] = uuid
        else:
            slots.append(uuid)
    return tuple(slots)
