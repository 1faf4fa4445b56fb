"""Asks the engines how full they are, and those that are out whether they answer again."""

from __future__ import annotations

import asyncio
import functools
import re
import time

from fleets.domain import stall
from fleets.domain.types import Role
from fleets.router.exchange import exchange
from fleets.router.offers import ASK_EVERY_S, REQUEST, offers_of
from fleets.router.policy import ReplicaState, Stage
from fleets.router.taker import LegError, LegFailure
from fleets.router.telemetry import Telemetry, now
from fleets.router.upstream import Pool
from metrics.domain.types import Route

DEADLINE_S = 2.0
_SILENT_S = 5.0  # it is only taken out by it, and comes back with its first answer
_REQUEST = b"GET /metrics HTTP/1.1\r\nhost: engine\r\n\r\n"
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


# What moves with each step that an engine makes: a prefill in chunks fills its KV before it counts a token.
_STEPS = rb"iteration_tokens_total_count|prompt_tokens_total|generation_tokens_total|kv_cache_usage_perc|num_requests_running"
_MARKS = re.compile(rb"^vllm:(" + _STEPS + rb")(?:\{[^}\n]*\})? ([0-9.eE+-]+)", re.MULTILINE)
_DEFERRED = re.compile(rb'^vllm:num_requests_waiting_by_reason\{[^}\n]*reason="deferred"[^}\n]*\} ([0-9.eE+-]+)', re.MULTILINE)

_WAITING = re.compile(rb"^vllm:num_requests_waiting(?:\{[^}\n]*\})? ([0-9.eE+-]+)", re.MULTILINE)  # where no reasons are told


def marks_of(metrics: bytes) -> tuple[tuple[float, ...], bool, bool]:
    """Figures that move with the engine's steps (none: it counts no steps), whether it runs requests, and whether those that it has
    all wait for another engine's KV."""
    found = _MARKS.findall(metrics)
    running = sum(float(value) for name, value in found if name == b"num_requests_running")
    if not any(name == b"iteration_tokens_total_count" for name, _ in found):
        return (), running > 0, False
    deferred = sum(float(value) for value in _DEFERRED.findall(metrics) or _WAITING.findall(metrics))
    return tuple(float(value) for name, value in found if name != b"num_requests_running"), running > 0, deferred > 0 and not running


class Gauges:
    """Polls every replica of the table; one that hangs delays no other."""

    def __init__(
        self, stage: Stage, pool: Pool, telemetry: Telemetry, *, hung_after_s: float = stall.STUCK_S, token_s: float = 0.001
    ) -> None:
        """`hung_after_s` without a step, and `token_s` more for each prompt token that is being computed, is a hang; 0: nothing is."""
        self._hung_after_s, self._token_s = hung_after_s, token_s
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
        try:
            status, body = await exchange(self._pool, replica.address, _REQUEST, first_s=DEADLINE_S, total_s=DEADLINE_S)
        except LegError as error:
            self._silent(replica, engine_id)
            replica.answers = False
            replica.kv_use = None
            if error.kind is LegFailure.CONNECT and replica.out_until_s is None:
                self._stage.failed(replica, error.kind, engine_id)
            return
        replica.answers, replica.answered_s = status < 500, asked_s
        if not replica.answers:
            return
        if replica.engine_id == engine_id:
            self._moves(replica, body)
        if replica.role is not Role.PREFILL:
            replica.kv_use = kv_use_of(body)
            self._count(replica)
            for series, (judged, recomputed) in replica.ledger.read(loaded_of(body), now_s=now()).items():
                series.alarms.kv_judged(judged, recomputed)
                series.count("kv.recomputed", recomputed)
        if replica.out_until_s is not None and replica.unreachable:
            replica.out_until_s = time.monotonic()  # it was out because nobody was there; now somebody is
        if asked_s - replica.offers_at_s > ASK_EVERY_S:
            await self._ask_models(replica, engine_id)

    async def _ask_models(self, replica: ReplicaState, engine_id: str) -> None:
        """What it serves, now and then; an engine that does not say serves the stage's model."""
        replica.offers_at_s = now()
        try:
            status, body = await exchange(self._pool, replica.address, REQUEST, first_s=DEADLINE_S, total_s=DEADLINE_S)
        except LegError:
            return  # the next question says whether it is gone
        if status == 200 and replica.engine_id == engine_id:
            replica.offers = offers_of(body)

    def _silent(self, replica: ReplicaState, engine_id: str) -> None:
        """It gave no answer: out at once when it has not for long, which says nothing about a request that takes long."""
        if replica.engine_id != engine_id:
            return
        replica.pulse = stall.look(replica.pulse, now_s=now(), answered=False)
        if replica.out_until_s is None and (why := stall.silence(replica.pulse, _SILENT_S)):
            self._stage.hangs(replica, why, stuck=False)

    def _moves(self, replica: ReplicaState, metrics: bytes) -> None:
        """It answered: out at once, and told of, when it has requests and does nothing with them."""
        marks, runs, elsewhere = marks_of(metrics)
        busy = not elsewhere and (self._pool.awaited(replica.address) or (runs and replica.running > 0))
        replica.pulse = stall.look(replica.pulse, now_s=now(), answered=True, busy=busy, marks=marks)
        allowed_s = self._token_s * replica.tokens
        why = stall.stuck(replica.pulse, after_s=self._hung_after_s, allowed_s=allowed_s) if self._hung_after_s else ""
        if not why:
            replica.hung = ""
        elif not replica.hung:
            self._stage.hangs(replica, why, stuck=True)

    def _count(self, replica: ReplicaState) -> None:
        """A reading of the KV cache counts for the alarms of what has traffic; one that is warm, or empty before its turn, says nothing."""
        unit = next((unit for unit in self._stage.units.values() if replica in unit.decodes), None)
        if replica.kv_use is None or unit is None or not (unit.spec.routable and self._stage.weights.get(unit.spec.release)):
            return
        spec, route = unit.spec, Route.AGGREGATED if unit.aggregated else Route.REMOTE
        self._telemetry.series(spec.unit, spec.prefill_release, replica.spec.release, route, False).alarms.kv_read(replica.kv_use)
