"""The simulated engine keeps the contract that denv has with vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from fleets.domain.types import Role
from tests.integration.engine_contract import CONTRACT, FATAL
from tests.integration.engine_peers import Peer, Trio, until
from tests.integration.engine_support import free_base

METRIC_TYPES: dict[str, str] = json.loads((Path(__file__).parent / "vllm_metric_types.json").read_text(encoding="utf-8"))
CONTEXT = 4096
LEASE_S = 1.0


def _up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=1).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def running(*roles: Role) -> Iterator[list[tuple[Peer, int]]]:
    """Engine processes, as an agent would start them, with their ids."""
    processes: list[subprocess.Popen[bytes]] = []
    made = []
    try:
        for role in roles:
            config: dict[str, str | float] = {
                "port": free_base(),
                "role": role.value,
                "model": "tiny",
                "speed": 20,
                "block_tokens": 32,
                "kv_blocks": CONTEXT // 32,
            }
            config |= {"lease_s": LEASE_S}
            processes.append(subprocess.Popen([sys.executable, "-m", "fleets.engines.sim", "--config", json.dumps(config)]))
            made.append((Peer(f"http://127.0.0.1:{config['port']}", "tiny"), processes[-1].pid))
        for peer, _ in made:
            until(partial(_up, peer.url), 10, "the engine listens")
        yield made
    finally:
        for process in processes:
            process.kill()
            process.wait(10)


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    """One of each role."""
    with running(Role.AGGREGATED, Role.PREFILL, Role.DECODE) as ((whole, _), (prefill, _), (decode, _)):
        yield Trio(whole, prefill, decode, context=CONTEXT, lease_s=LEASE_S, metric_types=METRIC_TYPES)


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
def test_the_simulated_engine_keeps_it(trio: Trio, promise: Callable[[Trio], None]) -> None:
    promise(trio)


@pytest.mark.parametrize("end", FATAL, ids=lambda end: end.__name__)
def test_it_does_not_survive_it(trio: Trio, end: Callable[[Trio, int], None]) -> None:
    with running(Role.DECODE) as ((decode, pid),):
        end(replace(trio, decode=decode), pid)


def test_it_has_no_metric_that_vllm_lacks(trio: Trio) -> None:
    page = trio.decode.get("/metrics").text
    types = dict(line.split(" ")[2:4] for line in page.splitlines() if line.startswith("# TYPE vllm:"))
    assert types == METRIC_TYPES
