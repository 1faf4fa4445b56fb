"""Asks the engines how full they are, and those that are out whether they answer again."""

from __future__ import annotations

import asyncio
import functools
import re
import time

from fleets.domain.types import Role
from fleets.router.exchange import exchange
from fleets.router.policy import ReplicaState, Stage
from fleets.router.telemetry import Telemetry, now
from fleets.router.upstream import LegError, LegFailure, Pool
from metrics.domain.types import Route

DEADLINE_S = 2.0
_NAMES = rb"vllm:kv_cache_usage_perc|vllm:gpu_cache_usage_perc|sglang:token_usage|trtllm_kv_cache_utilization"
_KV_USE = re.compile(rb"^(?:" + _NAMES + rb")(?:\{[^}\n]*\})? ([0-9.eE+-]+)", re.MULTILINE)


_LOADED = re.compile(rb'^vllm:prompt_tokens_by_source_total\{[^}\n]*source="external_kv_transfer"[^}\n]*\} ([0-9.eE+-]+)', re.MULTILINE)


def loaded_of(metrics: bytes) -> float | None:
    """Prompt tokens that the engine has loaded from elsewhere since it started; None when it tells none."""
    found = _LOADED.findall(metrics)
    return sum(float(value) for value in found) if found else None


def kv_use_of(metrics: bytes) -> float | None:
    """The fullest KV cache in an engine's metrics, 0 to 1; None when it tells none."""
    return max((float(value) for value in _KV_USE.findall(metrics)), default=None)


class Gauges:
    """Polls every replica of the table; one that hangs delays no other."""

    def __init__(self, stage: Stage, pool: Pool, telemetry: Telemetry) -> None:
        self._stage = stage
        self._telemetry = telemetry
        self._pool = pool
        self._polls: dict[str, asyncio.Task[None]] = {}

    def poll(self) -> None:
        """Start a poll of each replica that is not being polled still."""
        for replica in self._stage.replicas.values():
            if replica.name not in self._polls:
                task = asyncio.ensure_future(self._one(replica))
                self._polls[replica.name] = task
                task.add_done_callback(functools.partial(self._polled, replica.name))

    def _polled(self, name: str, task: asyncio.Task[None]) -> None:
        self._polls.pop(name, None)

    async def close(self) -> None:
        """End the polls that run."""
        tasks = list(self._polls.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, replica: ReplicaState) -> None:
        engine_id, asked_s = replica.engine_id, now()
        path = b"/health" if replica.role is Role.PREFILL else b"/metrics"
        request = b"GET %b HTTP/1.1\r\nhost: engine\r\n\r\n" % path
        try:
            status, body = await exchange(self._pool, replica.address, request, first_s=DEADLINE_S, total_s=DEADLINE_S)
        except LegError as error:
            replica.answers = False
            replica.kv_use = None
            if error.kind is LegFailure.CONNECT and replica.out_until_s is None:
                self._stage.failed(replica, error.kind, engine_id)
            return
        replica.answers, replica.answered_s = status < 500, asked_s
        if not replica.answers:
            return
        if replica.role is not Role.PREFILL:
            replica.kv_use = kv_use_of(body)
            self._count(replica)
            for series, (judged, recomputed) in replica.ledger.read(loaded_of(body), now_s=now()).items():
                series.alarms.kv_judged(judged, recomputed)
                series.count("kv.recomputed", recomputed)
        if replica.out_until_s is not None and replica.unreachable:
            replica.out_until_s = time.monotonic()  # it was out because nobody was there; now somebody is

    def _count(self, replica: ReplicaState) -> None:
        """A reading of the KV cache counts for the alarms of what has traffic; one that is warm, or empty before its turn, says nothing."""
        unit = next((unit for unit in self._stage.units.values() if replica in unit.decodes), None)
        if replica.kv_use is None or unit is None or not (unit.spec.routable and self._stage.weights.get(unit.spec.release)):
            return
        spec, route = unit.spec, Route.AGGREGATED if unit.aggregated else Route.REMOTE
        self._telemetry.series(spec.unit, spec.prefill_release, replica.spec.release, route, False).alarms.kv_read(replica.kv_use)
