"""The short form of the router's chaos run."""

from __future__ import annotations

from pathlib import Path

from tests.integration.router_chaos import run


async def test_nothing_is_left_when_clients_and_engines_misbehave(tmp_path: Path) -> None:
    left = await run(3.0, clients=40, seed=20261130, folder=tmp_path)
    assert left.clean, left
    assert left.objects < 4000, left.objects
    assert left.counters["requests"] > 50 and left.counters["cancelled"], left.counters
