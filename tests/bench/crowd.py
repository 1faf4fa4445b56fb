"""Many simulated nodes in one agent process, which writes down how long each sync took: `python -m tests.bench.crowd FILE FLAGS...`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TextIO

from fleets.agent import main as agent_main
from fleets.agent import state
from fleets.agent.config import parse_config
from fleets.agent.link import ControlLink
from fleets.domain.protocol import AgentReport, NodeSnapshot


class TimedLink(ControlLink):
    """Notes `seconds-since-the-epoch milliseconds node unchanged` of each sync; the wait for a place at the gate is not counted."""

    out: TextIO

    async def _sync(self, credential: str, report: AgentReport) -> NodeSnapshot:
        began_s = time.perf_counter()
        snapshot = await super()._sync(credential, report)
        took_ms = (time.perf_counter() - began_s) * 1000
        self.out.write(f"{time.time():.3f} {took_ms:.2f} {report.node} {int(snapshot.unchanged)}\n")
        return snapshot


def main(argv: list[str]) -> None:
    """An agent as it is, but for the notes."""
    with Path(argv[0]).open("w", buffering=1, encoding="utf-8") as out:
        TimedLink.out = out
        agent_main.ControlLink = TimedLink  # type: ignore[attr-defined]  # the one thing of it that is replaced
        config = parse_config(argv[1:])
        state.prepare(config.state_path)
        asyncio.run(agent_main.serve(config))


if __name__ == "__main__":
    main(sys.argv[1:])
