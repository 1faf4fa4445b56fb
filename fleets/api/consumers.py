"""The agents' socket: it says "look again" and nothing else, so a lost one costs an agent seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import redis.exceptions
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.urls import URLPattern, path

from denvweb.auth import bearer
from denvweb.core import wire
from denvweb.core.errors import ForbiddenError, InvalidError
from denvweb.wake import agents_topic, group_name
from fleets.domain.protocol import Poke
from fleets.services.nodes import node_authenticate

_REDIS_AWAY = (redis.exceptions.RedisError, OSError, asyncio.TimeoutError)
_JOIN_TIMEOUT_S = 5.0
_NODES_MAX = 10_000  # of one agent process


class PokeConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """One agent process; any credential of its nodes opens it. Pages cannot: they are known by their Origin.

    It is told of that credential's node, and of those that it names itself: a process may stand for many. What it could learn
    by naming others is that they were told to look.
    """

    async def connect(self) -> None:
        """Let agents in, refuse all others with 403."""
        self.nodes: set[str] = set()
        self.topics: set[str] = set()
        headers = dict(self.scope["headers"])
        if b"origin" in headers:  # a page: agents send none, and no page has a use for this socket
            await self.close()
            return
        header = headers.get(b"authorization", b"").decode("latin-1")
        try:
            node = await database_sync_to_async(node_authenticate)(credential=bearer(header))
        except ForbiddenError:
            await self.close()
            return
        if await self._listen([node.name]):
            await self.accept()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """The nodes that this process stands for."""
        try:
            named = wire.decode(text_data or "", Poke).nodes
        except InvalidError:
            await self.close()
            return
        await self._listen(named[:_NODES_MAX])

    async def _listen(self, nodes: Iterable[str]) -> bool:
        """Listen for these too; without Redis the socket closes, and the agent comes back with backoff and looks on its own meanwhile."""
        self.nodes |= set(nodes)
        wanted = {agents_topic(node) for node in self.nodes}
        try:
            async with asyncio.timeout(_JOIN_TIMEOUT_S):
                for topic in sorted(wanted - self.topics):
                    await self.channel_layer.group_add(group_name(topic), self.channel_name)
                    self.topics.add(topic)
        except _REDIS_AWAY:
            await self.close()
            return False
        return True

    async def disconnect(self, code: int) -> None:
        """Leave; with Redis away there is nothing to leave."""
        try:
            async with asyncio.timeout(_JOIN_TIMEOUT_S):
                for topic in self.topics:
                    await self.channel_layer.group_discard(group_name(topic), self.channel_name)
        except _REDIS_AWAY:
            return

    async def poke(self, event: dict[str, Any]) -> None:
        """Pass a hint on, if it is for one of this process's nodes; one without names is for all of them."""
        meant = [name for name in event["names"] if name in self.nodes]
        if meant or not event["names"]:
            await self.send(text_data=msgspec.json.encode(Poke(nodes=tuple(meant))).decode())


websocket_urlpatterns: list[URLPattern] = [path("agent/v1/poke", PokeConsumer.as_asgi())]
