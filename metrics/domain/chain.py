"""The journal's chain of hashes: who changes, drops or slips in a row breaks it, and the first broken link can be named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


def digest_of(*, at: datetime, content: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a row's content (all columns but its number), in one canonical JSON.

    PostgreSQL gives numbers back as they are worth and not as they were written (1e22 as a whole number), so they are
    written here by their worth.
    """
    told = {**content, "at": at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
    text = json.dumps(_by_worth(told), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _by_worth(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {str(key): _by_worth(item) for key, item in value.items()}
    return [_by_worth(item) for item in value] if isinstance(value, list | tuple) else value


def link_hash(*, prev_hash: str, seq: int, digest: str) -> str:
    """The hash of one link; the database's trigger computes the same."""
    return hashlib.sha256(f"{prev_hash}{seq}{digest}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Link:
    """One link with the event that it seals, as read from the tables; `recomputed` is the digest of what the row says now."""

    number: int
    seq: int
    prev_hash: str
    hash: str
    digest: str
    recomputed: str | None  # None: the event is gone


@dataclass(frozen=True, slots=True)
class ChainCheck:
    """What was found: `problem` is empty when all of it holds."""

    checked: int
    head: str  # hash of the last link; kept elsewhere, it shows later that nothing was cut off at the end
    problem: str


def chain_check(links: Iterable[Link], *, prev_hash: str = "") -> ChainCheck:
    """Walk the links in their order from the one whose hash is `prev_hash`, up to the first that does not hold."""
    checked, head = 0, prev_hash
    for link in links:
        problem = _problem(link, head)
        if problem:
            return ChainCheck(checked, head, problem)
        checked, head = checked + 1, link.hash
    return ChainCheck(checked, head, "")


def _problem(link: Link, head: str) -> str:
    if link.recomputed is None:
        return f"event {link.seq} is gone, but link {link.number} seals it"
    if link.recomputed != link.digest:
        return f"event {link.seq} says something else than when it was written"
    if link.prev_hash != head:
        return f"link {link.number} (event {link.seq}) does not follow the one before it: a link was taken out or put in"
    if link.hash != link_hash(prev_hash=head, seq=link.seq, digest=link.digest):
        return f"link {link.number} does not seal event {link.seq} as it was written"
    return ""
