"""What the router processes of one port tell each other: how busy each keeps the engines, and which prompts it sent where.

It is one file in memory with a part for each process, which alone writes it; the others read. There is no lock: a process that
dies, hangs or is stopped holds up nobody, its requests count no more after `SILENT_S`, and what it had learnt of prompts stays.
A reader may see a part in the middle of a change; then a load is off for one round, and prompts that were overwritten are skipped.

Ids are Python's own hashes, so all processes of a board run with one PYTHONHASHSEED.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fleets.router.policy import Stage

EVERY_S = 0.05
SILENT_S = 1.0
REPLICAS_MAX = 1024  # a part's rows; more replicas than these are not told of
RING_PAIRS = 1 << 15  # the newest (block, replica) pairs of a process

_BEAT, _ROWS, _WRITTEN, _HEAD = 0, 1, 2, 3  # words of a part: when it was written, rows of load, pairs ever written
_ROW_WORDS = 3  # replica, requests, tokens to prefill
_RING = _HEAD + REPLICAS_MAX * _ROW_WORDS
_PART = _RING + RING_PAIRS * 2
WORD_BYTES = 8

Load = tuple[int, int]  # requests, tokens to prefill
Pair = tuple[int, int]  # a block's hash, a replica's


class Board:
    """The parts of `peers` processes; part `own` is this one's."""

    def __init__(self, path: str, *, peers: int, own: int) -> None:
        size = peers * _PART * WORD_BYTES
        descriptor = os.open(path, os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, size)
            words = memoryview(mmap.mmap(descriptor, size)).cast("q")
        finally:
            os.close(descriptor)
        self._own = words[own * _PART : (own + 1) * _PART]
        self._others = [words[part * _PART : (part + 1) * _PART] for part in range(peers) if part != own]
        self._read = [0] * len(self._others)  # pairs of each of the others that were read
        self._written = self._own[_WRITTEN]  # a process that comes after one that died goes on where that one was

    def tell(self, loads: Mapping[int, Load], pairs: Sequence[Pair], now_ns: int) -> None:
        """This process's present load by replica, and what it has sent where since the last time."""
        own = self._own
        for row, (replica, (running, tokens)) in enumerate(list(loads.items())[:REPLICAS_MAX]):
            at = _HEAD + row * _ROW_WORDS
            own[at], own[at + 1], own[at + 2] = replica, running, tokens
        own[_ROWS] = min(len(loads), REPLICAS_MAX)
        for block, replica in pairs[-RING_PAIRS:]:
            at = _RING + self._written % RING_PAIRS * 2
            own[at], own[at + 1] = block, replica
            self._written += 1
        own[_WRITTEN] = self._written
        own[_BEAT] = now_ns

    def loads(self, now_ns: int) -> dict[int, Load]:
        """What the others keep each replica busy with; who is silent keeps none."""
        found: dict[int, Load] = {}
        for part in self._others:
            if now_ns - part[_BEAT] > SILENT_S * 1e9:
                continue
            for row in range(min(part[_ROWS], REPLICAS_MAX)):
                at = _HEAD + row * _ROW_WORDS
                running, tokens = found.get(part[at], (0, 0))
                found[part[at]] = (running + part[at + 1], tokens + part[at + 2])
        return found

    def pairs(self) -> list[Pair]:
        """What the others have sent where since the last time, as far as it is still there."""
        found: list[Pair] = []
        for index, part in enumerate(self._others):
            written = part[_WRITTEN]
            first = max(self._read[index], written - RING_PAIRS)
            places = [_RING + number % RING_PAIRS * 2 for number in range(first, written)]
            read = [(part[at], part[at + 1]) for at in places]
            overwritten = max(0, part[_WRITTEN] - RING_PAIRS - first)
            found += read[overwritten:]
            self._read[index] = written
        return found


class Sharing:
    """Keeps a stage's view of its replicas up to date with what the other processes do."""

    def __init__(self, board: Board, stage: Stage) -> None:
        self._board = board
        self._stage = stage
        stage.index.news = []

    def exchange(self) -> None:
        """Tell the others, and take over what they tell."""
        replicas, now_ns = {hash(name): replica for name, replica in self._stage.replicas.items()}, time.monotonic_ns()
        told, self._stage.index.news = self._stage.index.news or [], []
        own = {
            key: (replica.running - replica.running_elsewhere, replica.tokens - replica.tokens_elsewhere)
            for key, replica in replicas.items()
        }
        self._board.tell(own, [(block, hash(name)) for block, name in told], now_ns)
        loads = self._board.loads(now_ns)
        for key, replica in replicas.items():
            replica.share(*loads.get(key, (0, 0)))
        for unit in self._stage.units.values():
            unit.gate.admit()  # the others may have left room
        self._hear(self._board.pairs(), {key: replica.name for key, replica in replicas.items()})

    def _hear(self, pairs: Iterable[Pair], names: Mapping[int, str]) -> None:
        for block, replica in pairs:
            if (name := names.get(replica)) is not None:
                self._stage.index.hear(block, name)


def board_folder() -> Path | None:
    """Where a board's file costs no disk; None: the usual place of temporary files."""
    memory = Path("/dev/shm")  # the file gets a random name and is its owner's alone
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else None
