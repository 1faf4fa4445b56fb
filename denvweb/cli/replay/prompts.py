"""Prompts of a wanted length: the same block id is always the same text, so that shared ids are shared prefixes."""

from __future__ import annotations

import random
from functools import lru_cache

from denvweb.cli.replay.trace import MOONCAKE_BLOCK_TOKENS, TraceRequest

BYTES_PER_TOKEN = 4  # of English text, about, and of the simulated engine exactly

_TEXT = """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so up said what
its about than into them can only other time new some could these two may first then do any like my now over
such our man me even most made after also did many off before must well back through years
"""
_WORDS = tuple(_TEXT.split())


@lru_cache(maxsize=4096)
def block_text(block: int) -> str:
    """The text of one block: MOONCAKE_BLOCK_TOKENS tokens of BYTES_PER_TOKEN bytes."""
    rng, size = random.Random(block), MOONCAKE_BLOCK_TOKENS * BYTES_PER_TOKEN
    text = f"{block:x} " + " ".join(rng.choices(_WORDS, k=size // 3))
    return text[:size].ljust(size)


def prompt_of(request: TraceRequest) -> str:
    """A prompt of about `input_tokens` tokens that begins as every other prompt with the same first blocks does."""
    return "".join(map(block_text, request.blocks))[: request.input_tokens * BYTES_PER_TOKEN]
