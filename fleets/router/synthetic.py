"""Requests that this router makes itself while a new release is judged and users make too few on it.

Each goes the way of everybody's, to the new release and to the one that it is compared with, and is counted as a probe: with the
alarms' evidence apart, and never in users' figures. In every interval in which a user's request ended on the new release none is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import orjson

from fleets.domain.protocol import Synthetic
from fleets.router.answer import Answer
from fleets.router.heads import RequestHead
from fleets.router.pipeline import Pipeline
from fleets.router.policy import Stage
from fleets.router.telemetry import Telemetry

MOST_IN_FLIGHT = 32  # of both releases together: one that hangs is not asked ever more
_IDLE_S = 0.5
_HEAD = [(b"content-type", b"application/json")]


class Tester:
    """Makes the requests that the table asks for, one pair after another."""

    def __init__(
        self, stage: Stage, pipeline: Pipeline, telemetry: Telemetry, *, peers: int, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._stage = stage
        self._pipeline = pipeline
        self._telemetry = telemetry
        self._peers = peers  # processes that share the rate
        self._sleep = sleep
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = 0
        self._users = 0
        self._closed = False

    async def step(self) -> None:
        """Wait for one interval, and make a pair unless users made a request meanwhile."""
        wanted = self._wanted()
        await self._sleep(self._peers / wanted.per_s if wanted else _IDLE_S)
        if wanted is not None and wanted == self._wanted():
            self.pair(wanted)

    def _wanted(self) -> Synthetic | None:
        table = self._stage.table
        return table.synthetic if table is not None and table.synthetic and table.synthetic.prompts else None

    def pair(self, wanted: Synthetic) -> bool:
        """One request to each release, unless there is no need, or nobody there to take it; whether it was made."""
        users, before = self._telemetry.users_requests(wanted.releases[0]), self._users
        self._users = users
        enough = self._closed or users > before or len(self._tasks) >= MOST_IN_FLIGHT
        if enough or not all(self._stage.serves(release) for release in wanted.releases):
            return False
        prompt = wanted.prompts[self._turn % len(wanted.prompts)]
        self._turn += 1
        for release in wanted.releases:
            task = asyncio.ensure_future(self._one(release, prompt, wanted.tokens))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return True

    async def _one(self, release: str, prompt: str, tokens: int) -> None:
        table = self._stage.table
        messages = [{"role": "user", "content": prompt}]
        body = {"model": table.model if table else "", "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}
        head = RequestHead(b"POST", b"/v1/chat/completions", list(_HEAD))
        await self._pipeline.serve(head, orjson.dumps(body), Answer("synthetic"), only=release)

    async def settled(self) -> None:
        """All that were made have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Make no more, and end those under way: a router that stops must not keep itself busy."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await self.settled()
