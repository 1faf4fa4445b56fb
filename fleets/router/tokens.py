"""Prompts counted by the model's own tokenizer, where one is named: off the event loop, one at a time, and never more than a few KiB.

Whoever takes more tokens than it has bytes is short in any case, so short prompts are not counted. Long ones are counted by samples:
what counts there is the ratio of tokens to bytes, and a megabyte would take a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from denvweb.core.errors import DenvError, UnavailableError
from fleets.domain.tokenizer import tokenizer_source

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger("fleets.router.tokens")

WHOLE_BYTES = 16 << 10  # counted as they are
SAMPLES, SAMPLE_BYTES = 8, 1 << 10  # of longer ones
WAITING_MAX = 4  # prompts that wait to be counted; others are estimated
TRY_AGAIN_S = 300.0  # after a tokenizer could not be had
_CURE = "prompts are estimated from what engines say of earlier ones"

Count = Callable[[bytes], int]


def counter_from(name: str) -> Count:
    """A tokenizer's count of a prompt's tokens; blocks. Without the library UnavailableError; what else the library raises is bare."""
    try:
        from tokenizers import Tokenizer  # not installed everywhere
    except ImportError as error:
        raise UnavailableError("the library is not installed: pip install '.[tokenizers]' in denv's folder") from error
    repository, revision, path = tokenizer_source(name)
    tokenizer = Tokenizer.from_file(path) if path else Tokenizer.from_pretrained(repository, revision=revision or "main")
    return lambda prompt: _tokens_of(tokenizer, prompt)


def _tokens_of(tokenizer: Tokenizer, prompt: bytes) -> int:
    size = len(prompt)
    if size <= WHOLE_BYTES:
        return _count(tokenizer, [prompt])
    step = (size - SAMPLE_BYTES) // (SAMPLES - 1)
    parts = [prompt[start : start + SAMPLE_BYTES] for start in range(0, size - SAMPLE_BYTES + 1, step)]
    return round(_count(tokenizer, parts) / sum(map(len, parts)) * size)


def _count(tokenizer: Tokenizer, parts: list[bytes]) -> int:
    """As a batch, for which the library lets other threads run; without the tokens that begin and end a text."""
    texts = [part.decode("utf-8", "replace") for part in parts]
    return sum(len(encoding) for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False))


class Tokens:
    """The tokenizer of the stage, once it is loaded; nothing at all where none is named."""

    def __init__(self, load: Callable[[str], Count] = counter_from) -> None:
        self._load = load
        self._executor: ThreadPoolExecutor | None = None
        self._loading: asyncio.Task[None] | None = None
        self._failed_s: float | None = None
        self.name = ""
        self.count: Count | None = None
        self.waiting = 0
        self.failures = 0  # of loading, and of counting
        self.estimated = 0  # prompts that came while too many waited

    def want(self, name: str) -> None:
        """Have this one from now on; empty: none. One that could not be had is tried again after a while."""
        if name != self.name:
            self.name, self.count, self._failed_s = name, None, None
        retry = self._failed_s is not None and time.monotonic() - self._failed_s > TRY_AGAIN_S
        if name and self.count is None and self._loading is None and (self._failed_s is None or retry):
            self._loading = asyncio.get_running_loop().create_task(self._have(name))

    async def _have(self, name: str) -> None:
        try:
            count = await asyncio.get_running_loop().run_in_executor(self._threads(), self._load, name)
        except DenvError as error:
            self._cannot(name, error.detail)
        except Exception as error:  # the library raises Exception itself, whatever the matter is
            log.exception("a tokenizer could not be loaded")
            self._cannot(name, str(error))
        else:
            if name == self.name:
                self.count, self._failed_s = count, None
                log.info("prompts are counted by the tokenizer %s", name)
        finally:
            self._loading = None

    def _cannot(self, name: str, why: str) -> None:
        self.failures += 1
        self._failed_s = time.monotonic()
        log.warning("the tokenizer %s cannot be used: %s; %s", name, why, _CURE)

    def begin(self, prompt: bytes) -> asyncio.Future[int] | None:
        """Count it in a thread; None when too many wait."""
        count = self.count
        if count is None or self.waiting >= WAITING_MAX:
            self.estimated += 1
            return None
        self.waiting += 1
        counting = asyncio.get_running_loop().run_in_executor(self._threads(), count, prompt)
        counting.add_done_callback(self._counted)
        return counting

    def _counted(self, counting: asyncio.Future[int]) -> None:
        self.waiting -= 1
        if not counting.cancelled() and counting.exception() is not None:
            self.failures += 1
            log.warning("a prompt could not be counted: %s", counting.exception())

    def _threads(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        return self._executor

    def close(self) -> None:
        """Nothing is counted any more."""
        if self._loading is not None:
            self._loading.cancel()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
