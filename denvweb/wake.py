"""Hints: "look again". Losing any of them costs seconds, never truth, so none may raise and none may wait long."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Iterable, Mapping, Sequence

import redis.exceptions
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction
from kombu.exceptions import OperationalError

log = logging.getLogger(__name__)

_BROKER_ERRORS = (OperationalError, redis.exceptions.RedisError, OSError, asyncio.TimeoutError)
_POKE_TIMEOUT_S = 1.0
_AGENT_TOPICS = 32


def wake(task: str, *args: object) -> None:
    """Send a Celery task by name once the present transaction is committed."""
    transaction.on_commit(lambda: _send(task, args))


def _send(task: str, args: tuple[object, ...]) -> None:
    from celery import current_app

    try:
        current_app.send_task(task, args=args, retry=False, expires=60)
    except _BROKER_ERRORS as error:
        log.warning("wake of %s was lost (beat does it again): %s", task, error)


def poke(*topics: str) -> None:
    """Tell whoever waits for a topic to look again, once the present transaction is committed.

    Topics: `router.<stage>` (a new table), `events` (the journal grew), and those of `agents_topic`.
    """
    transaction.on_commit(lambda: _poke(dict.fromkeys(topics, ())))


def poke_agents(nodes: Iterable[str]) -> None:
    """Tell the agents of these nodes, and no others, to look at what they should run, once the present transaction is committed."""
    names: dict[str, list[str]] = {}
    for node in sorted(set(nodes)):
        names.setdefault(agents_topic(node), []).append(node)
    transaction.on_commit(lambda: _poke(names))


def agents_topic(node: str) -> str:
    """Where the agent of a node listens. Nodes share a few topics: each message wakes one agent's socket in so many, not all of them."""
    return f"agents.{zlib.crc32(node.encode()) % _AGENT_TOPICS}"


def group_name(topic: str) -> str:
    """A topic as a channel-layer group: only letters, digits, dots and dashes are allowed there."""
    return "".join(char if char.isalnum() or char in "-." else "-" for char in topic)[:90]


async def poke_now(messages: Mapping[str, Sequence[str]]) -> None:
    """Poke at once, from async code: topics, each with the names that are meant (none: all who listen)."""
    layer = get_channel_layer()
    for topic, names in messages.items():
        message = {"type": "poke", "topic": topic, "names": list(names)}
        await asyncio.wait_for(layer.group_send(group_name(topic), message), _POKE_TIMEOUT_S)


def _poke(messages: Mapping[str, Sequence[str]]) -> None:
    try:
        async_to_sync(poke_now)(messages)
    except _BROKER_ERRORS as error:
        log.warning("poke of %s was lost (they look again by themselves): %s", ", ".join(messages), error)


class Waiter:
    """Waits for pokes of some topics: `async with Waiter("events") as waiter: await waiter.wait(1.0)`.

    Join before the first look at the database, or a poke in between is lost. With Redis down it only sleeps, so the
    caller must look again after every `wait`, whatever it returned.
    """

    def __init__(self, *topics: str) -> None:
        self._groups = [group_name(topic) for topic in topics]
        self._channel: str | None = None

    async def __aenter__(self) -> Waiter:
        await self._join()
        return self

    async def _join(self) -> None:
        layer = get_channel_layer()
        try:
            async with asyncio.timeout(_POKE_TIMEOUT_S):
                channel = await layer.new_channel()
                for group in self._groups:
                    await layer.group_add(group, channel)
            self._channel = channel
        except _BROKER_ERRORS:
            self._channel = None

    async def wait(self, timeout_s: float) -> bool:
        """True when poked, False after `timeout_s`."""
        if self._channel is None:
            await asyncio.sleep(min(timeout_s, 1.0))
            await self._join()
            return False
        try:
            await asyncio.wait_for(get_channel_layer().receive(self._channel), timeout_s)
            return True
        except asyncio.TimeoutError:
            return False
        except _BROKER_ERRORS:
            self._channel = None
            return False

    async def __aexit__(self, *exc: object) -> None:
        if self._channel is None:
            return
        layer = get_channel_layer()
        try:
            for group in self._groups:
                await layer.group_discard(group, self._channel)
        except _BROKER_ERRORS:
            log.debug("could not leave %s: Redis is away", self._groups)
