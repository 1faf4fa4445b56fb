"""What every request on its way uses: the stage, the connections, the counters, and how a leg's bytes are put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fleets.router.callers import Callers
from fleets.router.config import Config
from fleets.router.handover import Leases
from fleets.router.heads import RequestHead
from fleets.router.policy import Stage
from fleets.router.telemetry import Series, Telemetry
from fleets.router.tokens import Tokens
from fleets.router.upstream import Address, Pool
from metrics.domain.types import Route

if TYPE_CHECKING:
    from fleets.router.job import Job

PREFIXES_MAX = 64  # engines that a known head keeps its own bytes for


class TokenRatio:
    """Tokens in a byte of prompt, learnt from what engines say; old requests fade."""

    __slots__ = ("_bytes", "_tokens", "value")

    def __init__(self) -> None:
        self._tokens, self._bytes = 2_500.0, 10_000.0
        self.value = 0.25  # tokens for each byte

    def learn(self, tokens: int, size_bytes: int) -> None:
        """One prompt's truth."""
        self._tokens = self._tokens * 0.99 + tokens
        self._bytes = self._bytes * 0.99 + size_bytes
        self.value = self._tokens / self._bytes


class Services:
    """Shared by all requests of one router."""

    __slots__ = ("callers", "config", "ended", "leases", "pool", "ratio", "stage", "telemetry", "tokens")

    def __init__(self, config: Config, stage: Stage, pool: Pool, telemetry: Telemetry, ended: Callable[[Job], None]) -> None:
        self.config = config
        self.stage = stage
        self.pool = pool
        self.telemetry = telemetry
        self.ratio = TokenRatio()
        self.tokens = Tokens()
        self.leases = Leases(config.gauge_every_s)
        self.callers = Callers(config.peers)
        self.ended = ended  # told of each request that is over

    def message(self, head: RequestHead, leg_id: bytes, address: Address, body: bytes) -> bytes:
        """A leg's request: the client's headers, without those of its own connection, and without an API key of ours.

        `leg_id` is the request's id, and what else comes after it on lines of its own.
        """
        prefix = head.prefixes.get(address)
        if prefix is None:
            if len(head.prefixes) >= PREFIXES_MAX:
                head.prefixes.clear()
            forwarded = head.lines(without=b"authorization") if self.callers.required else head.forwarded
            prefix = b"POST %b HTTP/1.1\r\nhost: %b:%d\r\n%bx-request-id: " % (
                head.target, address[0].encode(), address[1], forwarded,
            )  # fmt: skip
            head.prefixes[address] = prefix
        return b"%b%b\r\ncontent-length: %d\r\n\r\n%b" % (prefix, leg_id, len(body), body)

    def nowhere(self, *, probe: bool, only: str | None = None) -> Series:
        """A request without a unit still counts: to the one release that it was for, or the one with the most weight."""
        weights = self.stage.weights
        release = only or max(weights, key=lambda name: weights[name], default="")
        return self.telemetry.series("", release, release, Route.LOCAL, probe)
