"""The word that somebody meant: one rule for commands, options, names, keys of files and filters."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 127  # what is longer is no slip of the keyboard, and comparing it takes long
_NEAR = 0.55  # the share of letters in common, in order, from which a word may be the one that was meant


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is nearest to this one, whatever its case; empty when none is near."""
    if not word or len(word) > _LONGEST:
        return ""
    folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=_NEAR)
    if near:
        return folded[near[0]]
    longer = sorted(one for one in folded if len(word) >= 3 and one.startswith(word.casefold()))
    return folded[longer[0]] if longer else ""


def meant(word: str, known: Iterable[str]) -> str:
    """`Did you mean `x`?` for the nearest known word, a sentence of its own, or nothing."""
    near = nearest(word, known)
    return f"Did you mean `{near}`?" if near else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean `x`?`, the same as the end of a sentence."""
    near = nearest(word, known)
    return f"; did you mean `{near}`?" if near else ""
