"""How long a share has been over its limit without a break.

Where an old release serves the same minutes, a burst moves both and condemns none. Where there is none (all traffic is on the new
release, or it is the first), a burst and a bad release look alike but for one thing: a burst passes. So a breach must then last.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from metrics.domain.alarm import NOTHING
from metrics.domain.types import AlarmCount

LASTS_S = 240.0  # twice the two minutes of a common burst, because its edges may fall anywhere in a block
BLOCK_S = 30.0
_COUNTED_S = 60.0  # of one block at most: silence after a burst is no part of it
_LONGEST_BLOCK_S = 180.0  # thin traffic must not keep a block open for ever
_ENOUGH = 3.0  # requests that a block would have over the limit, were the share just at it


@dataclass(frozen=True, slots=True)
class Spell:
    """Blocks of time, one after the other, of which each had a share over the limit. `block_at` None: no block is open yet."""

    block_at: datetime | None = None
    block: AlarmCount = NOTHING  # counts when the open block began
    lasted_s: float = 0.0  # of the whole blocks


def spell_look(p0: float, spell: Spell, total: AlarmCount, now: datetime, *, within: bool = False) -> Spell:
    """The spell after a look at the counts so far; `within`: one of keeping the limit instead."""
    if spell.block_at is None:
        return Spell(now, total)
    open_s, n, k = (now - spell.block_at).total_seconds(), total.n - spell.block.n, total.k - spell.block.k
    if open_s < BLOCK_S or (n * p0 < _ENOUGH and open_s < _LONGEST_BLOCK_S):
        return spell
    if not n:  # silence says nothing either way
        return Spell(now, total, spell.lasted_s)
    return Spell(now, total, spell.lasted_s + min(open_s, _COUNTED_S) if (k > n * p0) is not within else 0.0)
