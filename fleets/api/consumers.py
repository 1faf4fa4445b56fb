"""The agents' socket: it says "look again" and nothing else, so a lost one costs an agent seconds."""

from __future__ import annotations

import asyncio

import redis.exceptions
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.urls import URLPattern, path

from denvweb.auth import bearer
from denvweb.core import wire
from denvweb.core.errors import ForbiddenError
from denvweb.wake import group_name
from fleets.services.nodes import node_authenticate

_LOOK_AGAIN = wire.encode({"nodes": []}).decode()
_REDIS_AWAY = (redis.exceptions.RedisError, OSError, asyncio.TimeoutError)
_JOIN_TIMEOUT_S = 1.0


class PokeConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """One agent process; any credential of its nodes opens it. Browsers cannot: they send no Authorization header here."""

    async def connect(self) -> None:
        """Let agents in, refuse all others with 403."""
        header = dict(self.scope["headers"]).get(b"authorization", b"").decode("latin-1")
        try:
            await database_sync_to_async(node_authenticate)(credential=bearer(header))
        except ForbiddenError:
            await self.close()
            return
        try:
            async with asyncio.timeout(_JOIN_TIMEOUT_S):
                await self.channel_layer.group_add(group_name("agents"), self.channel_name)
        except _REDIS_AWAY:
            await self.close()  # the agent comes back with backoff, and looks on its own meanwhile
            return
        await self.accept()

    async def disconnect(self, code: int) -> None:
        """Leave; with Redis away there is nothing to leave."""
        try:
            async with asyncio.timeout(_JOIN_TIMEOUT_S):
                await self.channel_layer.group_discard(group_name("agents"), self.channel_name)
        except _REDIS_AWAY:
            return

    async def poke(self, event: dict[str, str]) -> None:
        """Pass a hint on."""
        await self.send(text_data=_LOOK_AGAIN)


websocket_urlpatterns: list[URLPattern] = [path("agent/v1/poke", PokeConsumer.as_asgi())]
