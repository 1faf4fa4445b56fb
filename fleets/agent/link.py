"""The way to the control plane: join once, sync often, and listen for pokes. Whatever fails here, the engines go on."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import websockets.asyncio.client
from websockets.exceptions import WebSocketException

from denvweb.core import wire
from denvweb.core.backoff import Backoff
from denvweb.core.errors import DenvError, ForbiddenError, InvalidError, UnavailableError
from fleets.agent.http import HttpClient
from fleets.domain.protocol import AgentReport, JoinReply, JoinRequest, LogPiece, LogPieceReply, NodeFacts, NodeSnapshot, Poke

log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0  # under the 10 s after which a silent node is suspect
_SYNCS_AT_ONCE = 32  # a reconnect wakes all nodes of this process, which should not storm the web process
T = TypeVar("T")


class ControlLink:
    """Requests to the control plane for all nodes of the process."""

    def __init__(self, control: str, client: HttpClient) -> None:
        self._base = control.rstrip("/")
        self._client = client
        self._gate = asyncio.Semaphore(_SYNCS_AT_ONCE)

    async def join(self, token: str, nodes: Sequence[NodeFacts], key: str) -> dict[str, str]:
        """Credentials by node. ForbiddenError when the token is refused, UnavailableError when nobody answers."""
        reply = await self._post("/agent/v1/join", JoinRequest(token=token, nodes=tuple(nodes), key=key), JoinReply)
        return reply.credentials

    async def sync(self, credential: str, report: AgentReport) -> NodeSnapshot:
        """Tell one node's state and get what it should run. ForbiddenError when the credential is refused."""
        async with self._gate:
            return await self._sync(credential, report)

    async def _sync(self, credential: str, report: AgentReport) -> NodeSnapshot:
        return await self._post("/agent/v1/sync", report, NodeSnapshot, credential)

    async def log_piece(self, credential: str, piece: LogPiece) -> LogPieceReply:
        """Deliver a piece of a log that somebody reads."""
        return await self._post("/agent/v1/logs", piece, LogPieceReply, credential)

    async def _post(self, path: str, message: object, into: type[T], credential: str = "") -> T:
        headers = (("Authorization", f"Bearer {credential}"),) if credential else ()
        url = self._base + path
        answer = await self._client.request("POST", url, body=wire.encode(message), headers=headers, timeout_s=_TIMEOUT_S)
        if answer.status == 200 or answer.status == 201:
            return wire.decode(bytes(answer.body), into)
        detail = _detail(bytes(answer.body)) or f"status {answer.status}"
        if answer.status in (401, 403):
            raise ForbiddenError(detail)
        if answer.status >= 500 or answer.status in (408, 429):
            raise UnavailableError(f"{path}: {detail}")
        raise DenvError(f"{path}: {detail}", code="refused")


def _detail(body: bytes) -> str:
    try:
        data: Any = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return ""
    return str(data.get("detail", "")) if isinstance(data, dict) else ""


class PokeListener:
    """One WebSocket for the whole process. A poke only says "look again", so a missed one costs a few seconds."""

    def __init__(self, control: str, nodes: Sequence[str], credential: Callable[[], str], on_poke: Callable[[Sequence[str]], None]) -> None:
        scheme, _, rest = control.rstrip("/").partition("://")
        self._url = f"{'wss' if scheme == 'https' else 'ws'}://{rest}/agent/v1/poke"
        self._nodes = tuple(nodes)
        self._credential = credential
        self._on_poke = on_poke
        self._backoff = Backoff(first_s=1.0, cap_s=15.0)

    async def run(self) -> None:
        """Listen for ever, and connect again after each cut."""
        failures = 0
        while True:
            try:
                await self._listen()
                failures = 0
            except (OSError, WebSocketException, TimeoutError) as error:
                log.log(logging.DEBUG if failures else logging.INFO, "no pokes from the control plane (%s); syncing by the clock", error)
            failures += 1
            await asyncio.sleep(self._backoff.delay_s(failures, random.random))

    async def _listen(self) -> None:
        headers = {"Authorization": f"Bearer {self._credential()}"}
        # No compression: a deflate window per connection is memory that a message of 12 bytes does not need.
        connect = websockets.asyncio.client.connect(
            self._url, additional_headers=headers, compression=None, max_queue=4, proxy=None, close_timeout=1.0
        )
        async with connect as socket:
            await socket.send(wire.encode(Poke(self._nodes)).decode())
            self._on_poke(())  # whatever was missed while the line was down
            async for message in socket:
                try:
                    self._on_poke(wire.decode(message, Poke).nodes)
                except InvalidError as error:
                    log.warning("a poke that cannot be read: %s", error)
