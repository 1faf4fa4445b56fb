"""Those who use denv while it is being broken: clients of the router, and a reader of the journal."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from denvweb.cli.client import Access

RATE_PER_S = 8.0
TIMEOUT_S = 60.0
_WORDS = "prefill decode cache router fleet domain replica weight canary bake "


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as its client saw it; `error` is empty when every token came."""

    began: float
    ended: float
    error: str


@dataclass
class Clients:
    """Open loop: a request every so often, however long the earlier ones take."""

    endpoint: str
    sent: list[Sent] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Sends while the block runs, and waits for the last answers."""
        with _thread(lambda: asyncio.run(self._send_all()), self._over):
            yield

    async def _send_all(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False) as client:
            number = 0
            while not self._over.is_set():
                number += 1
                tasks.add(task := asyncio.create_task(self._send(client, number)))
                task.add_done_callback(tasks.discard)
                await asyncio.sleep(1 / RATE_PER_S)
            await asyncio.gather(*tasks)

    async def _send(self, client: httpx.AsyncClient, number: int) -> None:
        began = time.time()
        try:
            error = await self._ask(client, number)
        except (httpx.HTTPError, OSError) as failure:
            error = repr(failure)
        self.sent.append(Sent(began, time.time(), error))

    async def _ask(self, client: httpx.AsyncClient, number: int) -> str:
        text = f"{number} " + _WORDS * (160 if number % 3 else 20)
        body = {"model": "ds-flash", "messages": [{"role": "user", "content": text}], "max_tokens": 24, "stream": True}
        async with client.stream("POST", f"{self.endpoint}/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                return f"{answer.status_code} {(await answer.aread())[:200]!r}"
            last = ""
            async for line in answer.aiter_lines():
                last = line or last
            return "" if last == "data: [DONE]" else f"the stream ended after {last[:80]!r}"


@dataclass
class Reader:
    """Follows the journal over server-sent events, and takes it up again where it was cut."""

    access: Access
    seqs: list[int] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def following(self, after: int) -> Iterator[None]:
        """Follows from a number on while the block runs."""
        self.seqs.append(after)
        with _thread(self._follow, self._over):
            yield

    def _follow(self) -> None:
        headers = {"Authorization": f"Bearer {self.access.token}"}
        while not self._over.is_set():
            try:
                resume = headers | {"Last-Event-ID": str(self.seqs[-1])}
                with httpx.stream("GET", f"{self.access.url}/api/v1/stream", headers=resume, timeout=httpx.Timeout(5, read=20)) as answer:
                    self._read(answer)
            except httpx.HTTPError:
                self._over.wait(0.3)

    def _read(self, answer: httpx.Response) -> None:
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: ":
                self.seqs.append(int(json.loads(line[6:])["seq"]))
            if self._over.is_set():
                return


@contextmanager
def _thread(run: Callable[[], None], over: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(90)
        assert not thread.is_alive()
