"""Which prompt blocks a replica holds."""

from __future__ import annotations

from collections import OrderedDict

from fleets.domain.simulator.types import BLOCK_TOKENS, Arrival


class PrefixCache:
    """The last blocks that went through one replica, as many as its KV memory has room for; least recently used go first."""

    __slots__ = ("_blocks", "_most")

    def __init__(self, kv_tokens: int) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._most = max(1, kv_tokens // BLOCK_TOKENS)

    def held_tokens(self, arrival: Arrival) -> int:
        """Leading tokens of a prompt that are here."""
        blocks, count = self._blocks, 0
        for block in arrival.blocks:
            if block not in blocks:
                break
            count += 1
        return min(arrival.input_tokens, count * BLOCK_TOKENS)

    def add(self, arrival: Arrival) -> None:
        """The whole prompt is here now. Its tail counts as used longer ago, since a prefix is of no use without its head."""
        blocks = self._blocks
        for block in reversed(arrival.blocks):
            blocks[block] = None
            blocks.move_to_end(block)
        while len(blocks) > self._most:
            blocks.popitem(last=False)

    def clear(self) -> None:
        """The replica lost its memory."""
        self._blocks.clear()
