"""The weights of one agent's nodes: each model is fetched once, whoever waits for it, and gone on with after a cut."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from denvweb.core.backoff import Backoff
from denvweb.core.units import format_duration
from fleets.agent.weights.progress import Progress, moved, sentence

log = logging.getLogger(__name__)

SILENCE_MAX_S = 600.0  # without a new byte, over all tries; then a person is needed
_BACKOFF = Backoff(first_s=2.0, cap_s=60.0)


@dataclass(frozen=True, slots=True)
class WeightsStatus:
    """How one model's weights are. Not ready and without `failed`: on their way, as `sentence` says."""

    ready: bool = False
    path: str = ""  # where they are; empty: the engine is to find them itself
    sentence: str = ""
    failed: str = ""  # why they will not come


class _Line(msgspec.Struct):
    done: int = 0
    total: int = 0
    verb: str = "weights"
    path: str = ""
    error: str = ""
    final: bool = False


@dataclass(slots=True)
class _Fetch:
    """One model on its way, or there."""

    token: str
    progress: Progress = field(default_factory=Progress)
    path: str = ""
    error: str = ""
    last_error: str = ""
    failed: str = ""
    tries: int = 0
    next_s: float = 0.0
    task: asyncio.Task[None] | None = None


class WeightsStore:
    """Asked for weights with `want`, as often as one likes; who subscribed is told when they are there, or will not come."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._fetches: dict[str, _Fetch] = {}
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call this when something that was waited for is there, or will not come."""
        self._listeners.append(on_change)

    def want(self, uri: str, secrets: Mapping[str, str]) -> WeightsStatus:
        """Have these weights here, and say how they are. `secrets` may hold the HF_TOKEN to fetch them with; a new one begins anew."""
        if not _fetchable(uri):
            return WeightsStatus(ready=True)
        token = secrets.get("HF_TOKEN", "")
        fetch = self._fetches.get(uri)
        if fetch is None or (fetch.token != token and not fetch.path and fetch.task is None):
            fetch = self._fetches[uri] = _Fetch(token, progress=Progress(moved_s=time.monotonic()))
        if fetch.path:
            if Path(fetch.path).exists():
                return WeightsStatus(ready=True, path=fetch.path)
            fetch.path = ""  # the cache was cleared under us
        if fetch.task is None and not fetch.failed:
            fetch.task = asyncio.create_task(self._fetch(uri, fetch))
        return self.status(uri)

    def status(self, uri: str) -> WeightsStatus:
        """How they are now, without asking for them."""
        fetch = self._fetches.get(uri)
        if fetch is None:
            return WeightsStatus()
        if fetch.path:
            return WeightsStatus(ready=True, path=fetch.path)
        if fetch.failed:
            return WeightsStatus(failed=fetch.failed)
        now_s = time.monotonic()
        if fetch.error:
            again_s = max(0.0, fetch.next_s - now_s)
            return WeightsStatus(sentence=f"weights: {fetch.error}; try {fetch.tries + 1} in {format_duration(again_s)}")
        return WeightsStatus(sentence=sentence(fetch.progress, now_s))

    async def close(self) -> None:
        """End what is under way; the next agent goes on with it."""
        tasks = [fetch.task for fetch in self._fetches.values() if fetch.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, uri: str, fetch: _Fetch) -> None:
        """Until they are there, or will not come."""
        try:
            while not fetch.path and not fetch.failed:
                fetch.last_error, fetch.error = fetch.error or fetch.last_error, ""
                fetch.tries += 1
                await self._try(uri, fetch)
                if not fetch.error or fetch.failed:
                    continue
                silent_s = time.monotonic() - fetch.progress.moved_s
                if silent_s > SILENCE_MAX_S:
                    fetch.failed = f"no byte of {uri} came for {format_duration(silent_s)}, the last reason: {fetch.error}"
                    continue
                wait_s = _BACKOFF.delay_s(fetch.tries, random.random)
                fetch.next_s = time.monotonic() + wait_s
                log.warning("%s: %s", uri, fetch.error)
                await asyncio.sleep(wait_s)
        finally:
            fetch.task = None
        log.info("%s: %s", uri, fetch.failed or f"there, in {fetch.path}")
        for listener in self._listeners:
            listener()

    async def _try(self, uri: str, fetch: _Fetch) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fleets.agent.weights.fetch", uri, str(self._cache)),
            stdin=asyncio.subprocess.PIPE,  # its end is how the fetch learns that this agent is gone
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(fetch.token),
            limit=2**20,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(None) as silence:
                _allow(silence, fetch)
                async for line in process.stdout:
                    _take(msgspec.json.decode(line, type=_Line), fetch)
                    _allow(silence, fetch)
            await process.wait()
            if not fetch.path and not fetch.error and not fetch.failed:
                fetch.error = f"fetching ended with code {process.returncode}"
        except TimeoutError:
            fetch.error = fetch.last_error or "nothing came"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _allow(silence: asyncio.Timeout, fetch: _Fetch) -> None:
    """The fetch may go on for so long without a byte."""
    left_s = fetch.progress.moved_s + SILENCE_MAX_S - time.monotonic()
    silence.reschedule(asyncio.get_running_loop().time() + left_s)


def _take(line: _Line, fetch: _Fetch) -> None:
    if line.error:
        fetch.error = line.error
        fetch.failed = line.error if line.final else ""
    elif line.path:
        fetch.path = line.path
    else:
        before = replace(fetch.progress, verb=line.verb)
        fetch.progress = moved(before, line.done, line.total, time.monotonic())


def _environment(token: str) -> dict[str, str]:
    """The agent's own, so that a proxy or HF_ENDPOINT count; a pool's own token counts before the node's."""
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return dict(os.environ) | quiet | ({"HF_TOKEN": token} if token else {})


def _fetchable(uri: str) -> bool:
    """Pinned, and there is a client for them: without one engines fetch their weights themselves."""
    if "@" not in uri:
        return False
    return uri.startswith("file://") or (uri.startswith("hf://") and find_spec("huggingface_hub") is not None)


def default_cache() -> Path:
    """Where the hub's client keeps its files, so that all programs of the node share them."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache)
    home = os.environ.get("HF_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"
