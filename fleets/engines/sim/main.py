"""`python -m fleets.engines.sim`: runs one simulated engine until it is told to end.

Exit status: 0 after SIGTERM (what is running is finished first) or SIGINT (at once), 2 for wrong flags, 3 when the gang broke,
9 for a crash on demand.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence

import uvloop

from denvweb.core.errors import InvalidError
from fleets.engines.sim.config import Config, parse_flags, usage
from fleets.engines.sim.server import Engine

log = logging.getLogger("denv.engine.sim")

DRAIN_S = 60.0
EXIT_FLAGS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    if "--help" in words or "-h" in words:
        sys.stdout.write(usage())
        return 0
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stdout)
    try:
        config = parse_flags(words)
    except InvalidError as error:
        sys.stderr.write(f"{error.detail}\n")
        return EXIT_FLAGS
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)  # the steady state makes hardly any cycles: the default would walk the heap for nothing
    try:
        return asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve(config))
    except InvalidError as error:
        log.error("%s", error.detail)
        return EXIT_FLAGS
    except OSError as error:
        log.error("cannot listen on %s:%d to %d: %s", config.host, config.port, config.port + 2, error)
        return 1


async def serve(config: Config) -> int:
    """Serve until a signal or the gang's end."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(status: int, why: str) -> None:
        if not ended.done():
            log.info("%s", why)
            ended.set_result(status)

    engine = Engine(config, on_exit=end)
    drains: list[asyncio.Task[None]] = []

    async def drain() -> None:
        await engine.drain(DRAIN_S)
        end(0, "ended")

    loop.add_signal_handler(signal.SIGTERM, lambda: end(0, "ended at once") if drains else drains.append(loop.create_task(drain())))
    loop.add_signal_handler(signal.SIGINT, lambda: end(0, "ended at once"))
    await engine.start()
    log.info(
        "%s %s of %s listens on %s:%d as %s", config.role.value, config.replica, config.model, config.host, config.port, engine.engine_id
    )
    watch = loop.create_task(_say_ready(engine))
    status = await ended
    watch.cancel()
    if status:
        logging.shutdown()
        os._exit(status)  # a broken gang leaves nothing to finish, and open streams must see the end at once
    return status


async def _say_ready(engine: Engine) -> None:
    await engine.until_ready()
    log.info("ready")
