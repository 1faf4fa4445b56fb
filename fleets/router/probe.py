"""Probes: real end-to-end requests to a unit that the table wants probed, through the same pipeline as everybody's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import orjson

from denvweb.core.backoff import Backoff
from fleets.domain.protocol import ProbeResult, ReplicaReadiness
from fleets.router.answer import Answer
from fleets.router.heads import RequestHead
from fleets.router.openai import engine_message
from fleets.router.pipeline import Pipeline
from fleets.router.policy import Pin, Stage, UnitState

AGAIN_S = 5.0  # a unit that passed, and is still to be probed, is probed again after this
DEADLINE_S = 60.0
_BACKOFF = Backoff(first_s=0.5, cap_s=10.0)
_PROMPT = "denv checks that this unit answers end to end. Count from one to four."


class Prober:
    """Keeps one probe loop for each unit that wants one."""

    def __init__(self, stage: Stage, pipeline: Pipeline, tell: Callable[[ProbeResult], None]) -> None:
        self._stage = stage
        self._pipeline = pipeline
        self._tell = tell
        self._loops: dict[str, asyncio.Task[None]] = {}

    def look(self) -> None:
        """Start and end loops after a new table."""
        wanted = {name for name, unit in self._stage.units.items() if unit.spec.probe}
        for name in self._loops.keys() - wanted:
            self._loops.pop(name).cancel()
        for name in wanted:
            if name not in self._loops or self._loops[name].done():
                self._loops[name] = asyncio.ensure_future(self._keep_probing(name))

    async def close(self) -> None:
        """End all loops."""
        tasks = list(self._loops.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_probing(self, name: str) -> None:
        failures = 0
        while (unit := self._stage.units.get(name)) is not None:
            result = await self.probe(unit)
            self._tell(result)
            failures = 0 if result.ok else failures + 1
            await asyncio.sleep(AGAIN_S if result.ok else _BACKOFF.delay_s(failures, random.random))

    async def probe(self, unit: UnitState) -> ProbeResult:
        """Requests that together go over every ready replica of the unit; the first that fails is the result."""
        ready = ReplicaReadiness.READY
        prefills = [replica.name for replica in unit.prefills if replica.spec.readiness is ready]
        decodes = [replica.name for replica in unit.decodes if replica.spec.readiness is ready]
        if not decodes or (unit.hands_over and not unit.aggregated and not prefills):
            return ProbeResult(unit.spec.unit, ok=False, detail="a pool has no ready replica")
        engines: list[str] = []
        for index in range(max(len(prefills), len(decodes))):
            prefill = prefills[index % len(prefills)] if prefills else ""
            detail = await self._one(Pin(unit.spec.unit, prefill, decodes[index % len(decodes)]), engines)
            if detail:
                return ProbeResult(unit.spec.unit, ok=False, detail=detail, engines=tuple(dict.fromkeys(engines)))
        return ProbeResult(unit.spec.unit, ok=True, engines=tuple(dict.fromkeys(engines)))

    async def _one(self, pin: Pin, engines: list[str]) -> str:
        """Why one request failed; empty when it did not."""
        table = self._stage.table
        body = {
            "model": table.model if table else "",
            "messages": [{"role": "user", "content": _PROMPT}],
            "max_tokens": 4,
            "temperature": 0,
            "stream": True,
        }
        head = RequestHead(b"POST", b"/v1/chat/completions", [(b"content-type", b"application/json")])
        answer = Answer("probe")
        try:
            async with asyncio.timeout(DEADLINE_S):
                job = await self._pipeline.serve(head, orjson.dumps(body), answer, pin=pin)
        except TimeoutError:
            return f"no answer within {DEADLINE_S:g} s from {_pair(pin)}"
        content = b"".join(answer.parts)
        if job is None or answer.status != 200 or job.error:
            return f"{_pair(pin)}: status {answer.status} {job.prefill_failure if job else ''} {engine_message(content)}".strip()
        if job.kv_recomputed:
            return f"{_pair(pin)}: prefill answered without KV to fetch"
        if job.first_s is None:
            return f"{_pair(pin)}: the answer has no token"
        engines += job.engines
        return ""


def _pair(pin: Pin) -> str:
    return f"{pin.prefill} -> {pin.decode}" if pin.prefill else pin.decode
