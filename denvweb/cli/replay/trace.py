"""Recorded traffic: Mooncake's JSON lines and Azure's CSV, as a list of timed requests."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from denvweb.core.errors import InvalidError

MOONCAKE_BLOCK_TOKENS = 512  # "hash_ids": one per 512 tokens of prompt (kvcache-ai/Mooncake, FAST'25 traces)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: when, how long, and which prompt blocks it shares with others. Azure's traces share none."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


def read_trace(path: Path) -> list[TraceRequest]:
    """Requests in order of arrival, the first at 0; InvalidError names the line that does not fit."""
    try:
        with path.open(encoding="utf-8") as lines:
            requests = list(_azure(lines) if path.suffix == ".csv" else _mooncake(lines))
    except OSError as error:
        raise InvalidError(f"{path}: {error.strerror}") from error
    except _LineError as error:
        raise InvalidError(f"{path}:{error}") from error
    except UnicodeDecodeError as error:
        raise InvalidError(f"{path}: not text in UTF-8 (byte {error.start})") from error
    if not requests:
        raise InvalidError(f"{path}: no request in it")
    requests.sort(key=lambda request: request.at_s)
    first_s = requests[0].at_s
    return _spread_ties([replace(request, at_s=request.at_s - first_s) for request in requests])


class _LineError(Exception):
    """`12: sentence`."""


def _mooncake(lines: Iterable[str]) -> Iterator[TraceRequest]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            yield TraceRequest(
                at_s=row["timestamp"] / 1000,
                input_tokens=max(1, int(row["input_length"])),
                output_tokens=max(1, int(row["output_length"])),
                blocks=tuple(int(block) for block in row["hash_ids"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise _LineError(
                f"{number}: not a Mooncake request (timestamp, input_length, output_length, hash_ids): {_plainly(error)}"
            ) from error


def _azure(lines: Iterable[str]) -> Iterator[TraceRequest]:
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            input_tokens = int(row["input_tokens"])
            yield TraceRequest(
                at_s=float(row["arrival_s"]),
                input_tokens=max(1, input_tokens),
                output_tokens=max(1, int(row["output_tokens"])),
                # Negative ids are nobody else's: each of these prompts is its own.
                blocks=tuple(-(number * 4096 + i) for i in range(-(-input_tokens // MOONCAKE_BLOCK_TOKENS))),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise _LineError(f"{number}: not an Azure request (arrival_s, input_tokens, output_tokens): {_plainly(error)}") from error


def _plainly(error: Exception) -> str:
    """What is wrong with a line, without the words of Python."""
    return (
        f"{error} is missing" if isinstance(error, KeyError) else "it is no JSON" if isinstance(error, json.JSONDecodeError) else str(error)
    )


def _spread_ties(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Spread requests of one instant over the time until the next one.

    Mooncake's clock ticks about every 3 s, so 90% of its gaps are 0: sent as written, its bursts would be of the clock
    and not of the users.
    """
    rng, spread, start = random.Random(0), [], 0
    while start < len(requests):
        end = start
        while end < len(requests) and requests[end].at_s == requests[start].at_s:
            end += 1
        gap_s = requests[end].at_s - requests[start].at_s if end < len(requests) else 0.0
        offsets_s = sorted(rng.uniform(0, gap_s) for _ in range(end - start)) if end - start > 1 else [0.0]
        spread += [replace(request, at_s=request.at_s + offset_s) for request, offset_s in zip(requests[start:end], offsets_s, strict=True)]
        start = end
    return spread


def schedule(
    requests: Sequence[TraceRequest], *, speed: float, duration_s: float | None, loop: bool
) -> Iterator[tuple[float, TraceRequest]]:
    """(seconds from the start, request), in order; the trace begins again at its end when `loop`."""
    offset_s, period_s = 0.0, requests[-1].at_s + (requests[-1].at_s / max(1, len(requests) - 1) or 1.0)
    while True:
        for request in requests:
            at_s = (offset_s + request.at_s) / speed
            if duration_s is not None and at_s >= duration_s:
                return
            yield at_s, request
        if not loop:
            return
        offset_s += period_s
