"""Looks at an engine from outside: is it ready, does it live, and what do its gauges say."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from denvweb.core.errors import UnavailableError
from fleets.agent import logs
from fleets.agent.http import HttpClient
from fleets.domain.protocol import RankSpec
from fleets.domain.stall import SILENT_S, look, silence
from fleets.engines.base import LaunchCommand

log = logging.getLogger(__name__)

_PROBE_FIRST_S = 0.15
_PROBE_CAP_S = 1.0
_PROBE_TIMEOUT_S = 2.0
_SCRAPE_EVERY_S = 5.0
_LIVE_EVERY_S = 2.0
_LIVE_TIMEOUT_S = 4.0  # a machine that starts large engines is slow for seconds
_LOOKS = 5  # that fit into the time after which silence is a hang, each with twice its period to answer

GaugeMapper = Callable[[str], dict[str, float]]  # an engine's metrics page to our names


@dataclass(frozen=True, slots=True)
class Watch:
    """What to look at for one running rank, and whom to tell."""

    spec: RankSpec
    command: LaunchCommand
    log_path: Path
    log_offset: int
    map_metrics: GaugeMapper
    on_ready: Callable[[], None]
    on_gauges: Callable[[dict[str, float]], None]
    on_hung: Callable[[str], None]
    hung_after_s: float = SILENT_S  # without an answer; 0: never

    @property
    def base_url(self) -> str:
        """Where the engine of this very rank would listen."""
        return f"http://{self.spec.leader_host}:{self.spec.port}"


async def watch(client: HttpClient, what: Watch, *, ready: bool) -> None:
    """Wait for readiness unless it is `ready`, then look whether it lives and read its gauges, until cancelled."""
    if not ready:
        await _until_ready(client, what)
        what.on_ready()
    async with asyncio.TaskGroup() as group:
        if what.command.ready_path and what.hung_after_s:
            group.create_task(_live_forever(client, what))
        if what.command.metrics_path:
            group.create_task(_scrape_forever(client, what))


async def _live_forever(client: HttpClient, what: Watch) -> None:
    """Tell once when it answers nothing any more. Any answer is a sign of life: whether it is well is for its readiness to say."""
    every_s = min(_LIVE_EVERY_S, what.hung_after_s / _LOOKS)
    timeout_s = min(_LIVE_TIMEOUT_S, 2 * every_s)
    pulse = None
    while not (pulse and (why := silence(pulse, what.hung_after_s))):
        await asyncio.sleep(every_s)
        answered = True
        try:
            await client.request("GET", what.base_url + what.command.ready_path, timeout_s=timeout_s)
        except UnavailableError:
            answered = False
        pulse = look(pulse, now_s=time.monotonic(), answered=answered)
    what.on_hung(why)


async def _scrape_forever(client: HttpClient, what: Watch) -> None:
    await asyncio.sleep(random.uniform(0.0, _SCRAPE_EVERY_S))  # engines that started together are not scraped together
    while True:
        await _scrape(client, what)
        await asyncio.sleep(_SCRAPE_EVERY_S)


async def _until_ready(client: HttpClient, what: Watch) -> None:
    wait_s = _PROBE_FIRST_S
    while True:
        await asyncio.sleep(wait_s)
        if await _is_ready(client, what):
            return
        wait_s = min(_PROBE_CAP_S, wait_s * 1.3)


async def _is_ready(client: HttpClient, what: Watch) -> bool:
    """By its endpoint, by a line in its log, or (a follower that says nothing) by being alive: this task ends with its process."""
    if what.command.ready_path:
        try:
            answer = await client.request("GET", what.base_url + what.command.ready_path, timeout_s=_PROBE_TIMEOUT_S)
        except UnavailableError:
            return False  # not listening yet
        return answer.status == 200
    return not what.command.ready_line or logs.has_line(what.log_path, what.command.ready_line, what.log_offset)


async def _scrape(client: HttpClient, what: Watch) -> None:
    try:
        answer = await client.request("GET", what.base_url + what.command.metrics_path, timeout_s=_PROBE_TIMEOUT_S)
    except UnavailableError as error:
        log.debug("no gauges of %s: %s", what.spec.rank_id, error)
        what.on_gauges({})  # old figures must not pass for new ones
        return
    what.on_gauges(what.map_metrics(answer.body.decode(errors="replace")) if answer.status == 200 else {})
