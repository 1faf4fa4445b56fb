"""Requests that go on while something is broken, and what became of them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Self

import httpx

from tests.vllm.client import ask, prompt, said, stream


@dataclass(slots=True)
class Load:
    """Threads that ask a router for short answers, each prompt new. A context manager; leaving it waits for the last answers."""

    url: str
    model: str
    threads: int = 2
    tokens: int = 200
    seed: int = 100_000
    pause_s: float = 0.25  # between two requests of a thread
    answered: list[tuple[list[int], list[int]]] = field(default_factory=list)  # prompt, answer
    failed: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _running: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._running = [threading.Thread(target=self._run, args=(self.seed + 10_000 * index,)) for index in range(self.threads)]
        for thread in self._running:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._running:
            thread.join()

    def wait_for(self, answers: int, timeout_s: float = 60.0) -> None:
        """Return once so many more were answered."""
        wanted, end_s = len(self.answered) + answers, time.monotonic() + timeout_s
        while len(self.answered) < wanted:
            assert time.monotonic() < end_s, f"{len(self.answered)} answered, {len(self.failed)} failed: {self.failed[-3:]}"
            time.sleep(0.05)

    def _run(self, seed: int) -> None:
        while not self._stop.wait(self.pause_s):
            seed += 1
            tokens = prompt(self.tokens, seed)
            try:
                if seed % 2:  # time to the first token is measured on streams
                    answer = stream(self.url, self.model, tokens)
                else:
                    answer = said(ask(self.url, self.model, tokens))
            except (httpx.HTTPError, AssertionError) as error:
                self.failed.append(str(error)[:300] or repr(error))
            else:
                self.answered.append((tokens, answer))
