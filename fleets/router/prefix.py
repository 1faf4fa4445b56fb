"""Which replica holds which prompt prefixes: an approximate, bounded index from what this router sent where.

A prompt is cut into blocks (256 bytes for the first 4 KiB, then 1 KiB); a block's hash covers all before it, so equal hashes
mean equal prefixes. Each hash maps to a bit mask of replicas, and the least recently used hashes are forgotten.

Of engines that tell what they hold (`kv_events`), the index never believes more than that: what was used longest ago goes first, as
it does in engines, and of one prompt its end before its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

FINE_BYTES = 256
FINE_BLOCKS = 16
COARSE_BYTES = 1024
MAX_BLOCKS = 1040  # about 1 MiB of prompt; what lies behind it no longer changes a decision


class Blocks:
    """A prompt's chained block hashes, and its whole length. Never changed; not frozen, which would triple its cost."""

    __slots__ = ("hashes", "size_bytes")

    def __init__(self, hashes: tuple[int, ...], size_bytes: int) -> None:
        self.hashes = hashes
        self.size_bytes = size_bytes

    def bytes_of(self, count: int) -> int:
        """Bytes that the first `count` blocks cover."""
        fine = min(count, FINE_BLOCKS)
        return fine * FINE_BYTES + (count - fine) * COARSE_BYTES


def blocks_of(prompt: bytes) -> Blocks:
    """Cut a rendered prompt; what is left after the last full block is not hashed."""
    size = len(prompt)
    hashes: list[int] = []
    last = 0
    fine_end = min(size // FINE_BYTES, FINE_BLOCKS) * FINE_BYTES
    for start in range(0, fine_end, FINE_BYTES):
        last = hash((last, prompt[start : start + FINE_BYTES]))
        hashes.append(last)
    whole = (size - fine_end) // COARSE_BYTES if len(hashes) == FINE_BLOCKS else 0
    for start in range(fine_end, fine_end + min(whole, MAX_BLOCKS - FINE_BLOCKS) * COARSE_BYTES, COARSE_BYTES):
        last = hash((last, prompt[start : start + COARSE_BYTES]))
        hashes.append(last)
    return Blocks(tuple(hashes), size)


class _Shelf:
    """Blocks that one replica is believed to hold, by their bytes; the least recently used first."""

    __slots__ = ("blocks", "total_bytes")

    def __init__(self) -> None:
        self.blocks: OrderedDict[int, int] = OrderedDict()
        self.total_bytes = 0

    def use(self, block: int, size_bytes: int) -> None:
        """It is there, and was used just now."""
        if block in self.blocks:
            self.blocks.move_to_end(block)
        else:
            self.blocks[block] = size_bytes
            self.total_bytes += size_bytes

    def drop(self, block: int) -> None:
        """It is not there."""
        self.total_bytes -= self.blocks.pop(block, 0)


class PrefixIndex:
    """Hash of a prompt's prefix -> replicas that were sent it. Holds at most `max_blocks` hashes."""

    _SWEEP_BITS = 256  # bits of forgotten replicas are reused after this many

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._masks: OrderedDict[int, int] = OrderedDict()
        self._bits: dict[str, int] = {}
        self._live = 0
        self._next_bit = 0
        self._shelves: dict[str, _Shelf] = {}  # of replicas that tell what they hold
        self.news: list[tuple[int, str]] | None = None  # blocks that were new to a replica; kept where somebody wants them

    def __len__(self) -> int:
        return len(self._masks)

    def held_bytes(self, blocks: Blocks, replicas: Sequence[str]) -> list[int]:
        """For each of `replicas`, how many leading bytes of the prompt it is believed to hold."""
        wanted = 0
        for replica in replicas:
            wanted |= self._bits.get(replica, 0)
        counts = self._counts(blocks.hashes, wanted & self._live)
        return [blocks.bytes_of(counts.get(self._bits.get(replica, 0), 0)) for replica in replicas]

    def held_by(self, blocks: Blocks, replica: str) -> int:
        """The same for one replica."""
        bit = self._bits.get(replica, 0) & self._live
        if not bit:
            return 0
        masks, count = self._masks, 0
        for block in blocks.hashes:
            if not masks.get(block, 0) & bit:
                break
            count += 1
        return blocks.bytes_of(count)

    def _counts(self, hashes: Sequence[int], alive: int) -> dict[int, int]:
        """Leading blocks held, by replica bit. One walk for all: a replica leaves the mask at its first missing block."""
        counts: dict[int, int] = {}
        for depth, block in enumerate(hashes):
            if not alive:
                return counts
            still = alive & self._masks.get(block, 0)
            _spread(alive & ~still, depth, counts)
            alive = still
        _spread(alive, len(hashes), counts)
        return counts

    def add(self, blocks: Blocks, replica: str) -> None:
        """The replica now holds this prompt."""
        bit = self._bits.get(replica) or self._new_bit(replica)
        masks = self._masks
        move_to_end = masks.move_to_end
        for block in blocks.hashes:
            held = masks.get(block, 0)
            if not held & bit:
                masks[block] = held | bit
                if self.news is not None:
                    self.news.append((block, replica))
            move_to_end(block)
        shelf = self._shelves.get(replica)
        if shelf is not None:
            for depth in range(len(blocks.hashes) - 1, -1, -1):  # the end first, so that it is the first to go
                shelf.use(blocks.hashes[depth], FINE_BYTES if depth < FINE_BLOCKS else COARSE_BYTES)
        self._trim()

    def hear(self, block: int, replica: str) -> None:
        """Another process sent a prompt with this block there."""
        masks = self._masks
        masks[block] = masks.get(block, 0) | (self._bits.get(replica) or self._new_bit(replica))
        masks.move_to_end(block)
        shelf = self._shelves.get(replica)
        if shelf is not None:
            shelf.use(block, COARSE_BYTES)  # it may be a fine one: rather too little is believed than too much
        self._trim()

    def _trim(self) -> None:
        while len(self._masks) > self._max_blocks:
            block, _ = self._masks.popitem(last=False)
            for shelf in self._shelves.values():
                shelf.drop(block)

    def forget(self, replica: str) -> None:
        """The replica restarted, is gone, or has cleared its cache: it holds nothing."""
        self._live &= ~self._bits.pop(replica, 0)
        if replica in self._shelves:
            self._shelves[replica] = _Shelf()

    def track(self, replica: str, *, tells: bool) -> None:
        """Whether the replica tells how much it holds; what is believed of one that has only begun to is forgotten."""
        if tells and replica not in self._shelves:
            self._shelves[replica] = _Shelf()
            self.forget(replica)
        elif not tells:
            self._shelves.pop(replica, None)

    def limit(self, replica: str, most_bytes: float) -> None:
        """A replica that is tracked holds no more than this."""
        shelf, bit = self._shelves.get(replica), self._bits.get(replica, 0)
        while shelf is not None and shelf.total_bytes > most_bytes:
            block = next(iter(shelf.blocks))
            shelf.drop(block)
            left = self._masks.get(block, 0) & ~bit
            if left:
                self._masks[block] = left
            else:
                self._masks.pop(block, None)

    def _new_bit(self, replica: str) -> int:
        if self._next_bit - len(self._bits) >= self._SWEEP_BITS:
            self._sweep()
        bit = 1 << self._next_bit
        self._next_bit += 1
        self._bits[replica] = bit
        self._live |= bit
        return bit

    def _sweep(self) -> None:
        """Give the living replicas the lowest bits again, and drop what only the dead held."""
        moved = {old: 1 << index for index, old in enumerate(self._bits.values())}
        self._bits = {replica: moved[old] for replica, old in self._bits.items()}
        self._next_bit, self._live = len(moved), (1 << len(moved)) - 1
        fresh: OrderedDict[int, int] = OrderedDict()
        for block, mask in self._masks.items():
            left = sum(new for old, new in moved.items() if mask & old)
            if left:
                fresh[block] = left
        self._masks = fresh


def _spread(mask: int, depth: int, counts: dict[int, int]) -> None:
    while mask:
        bit = mask & -mask
        counts[bit] = depth
        mask ^= bit
