"""The simulated engine keeps the contract that denv has with vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from fleets.domain.types import Role
from tests.integration.engine_contract import CONTRACT, Peer, Trio, until
from tests.integration.engine_support import free_base

METRIC_TYPES: dict[str, str] = json.loads((Path(__file__).parent / "vllm_metric_types.json").read_text(encoding="utf-8"))
CONTEXT = 4096


def _up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=1).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    """Three engine processes, as an agent would start them."""
    processes, peers = [], []
    try:
        for role in (Role.AGGREGATED, Role.PREFILL, Role.DECODE):
            config = {"port": free_base(), "role": role.value, "model": "tiny", "speed": 20, "block_tokens": 32, "kv_blocks": CONTEXT // 32}
            processes.append(subprocess.Popen([sys.executable, "-m", "fleets.engines.sim", "--config", json.dumps(config)]))
            peers.append(Peer(f"http://127.0.0.1:{config['port']}", "tiny"))
            until(lambda: _up(peers[-1].url), 10, "the engine listens")
        whole, prefill, decode = peers
        yield Trio(whole, prefill, decode, context=CONTEXT, metric_types=METRIC_TYPES)
    finally:
        for process in processes:
            process.kill()
            process.wait(10)


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
def test_the_simulated_engine_keeps_it(trio: Trio, promise: Callable[[Trio], None]) -> None:
    promise(trio)


def test_it_has_no_metric_that_vllm_lacks(trio: Trio) -> None:
    page = trio.decode.get("/metrics").text
    types = dict(line.split(" ")[2:4] for line in page.splitlines() if line.startswith("# TYPE vllm:"))
    assert types == METRIC_TYPES
