"""Engines as a contract's tests speak to them: one aggregated, one prefill, one decode, of one model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
KEEP = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(frozen=True, slots=True)
class Peer:
    """One engine and the name of its model."""

    url: str
    model: str

    def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        """A request; the model is filled in."""
        return httpx.post(self.url + path, json={"model": self.model} | body, headers=headers, timeout=30)

    def get(self, path: str) -> httpx.Response:
        """A page."""
        return httpx.get(self.url + path, timeout=30)

    def frames(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The JSON of every server-sent event but the last, which must be `[DONE]`."""
        answer = self.post(path, {"stream": True} | body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = answer.text.removesuffix("\n\n").split("\n\n")
        assert events[-1] == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]

    def metric(self, name: str) -> float:
        """One of vLLM's metrics, all its labels added up."""
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        assert lines, f"{name} is not there"
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def idle(self) -> bool:
        """Whether it computes nothing and keeps no KV."""
        return self.metric("vllm:num_requests_running") == 0 == self.metric("vllm:kv_cache_usage_perc")


@dataclass(frozen=True, slots=True)
class Trio:
    """Three engines of one model. `context` is its longest prompt and answer together, in tokens; `lease_s` prefill's."""

    whole: Peer
    prefill: Peer
    decode: Peer
    context: int
    lease_s: float
    metric_types: dict[str, str]  # of vLLM, by metric name

    def fresh(self, tokens: int, seed: int) -> list[int]:
        """A prompt that no cache knows."""
        return [8 + (seed * 7919 + index * index * 31 + index) % 450 for index in range(tokens)]

    def kept(self, prompt: list[int], **headers: str) -> dict[str, Any]:
        """Prefill's reply to a handover."""
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": False, "kv_transfer_params": KEEP}
        answer = self.prefill.post(COMPLETIONS, body, **headers)
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()
        return reply


def until(look: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll; AssertionError names what did not come."""
    end_s = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < end_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)
