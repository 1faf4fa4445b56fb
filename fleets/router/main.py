"""`denv router`: the OpenAI-compatible request router of one stage."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Sequence

import uvloop

from denvweb.core.errors import DenvError
from denvweb.logs import LineFormatter
from fleets.router.app import App
from fleets.router.config import Config, parse
from fleets.router.processes import Processes


async def run(config: Config) -> None:
    """Serve until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    app = App(config)
    loop.add_signal_handler(signal.SIGHUP, app.reload)
    await app.start()
    gc.collect()
    gc.freeze()  # what is loaded stays: full collections in the middle of streams then only walk what requests made
    gc.set_threshold(20_000, 20, 20)  # requests leave hardly any cycles; the default looks for them about ten times a request
    await stop.wait()
    await app.stop()


async def _several(config: Config, argv: Sequence[str]) -> int:
    return await Processes(config, argv).run()


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the flags and run; the exit status."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        flags = sys.argv[1:] if argv is None else argv
        config = parse(flags)
        if config.processes > 1:
            return asyncio.run(_several(config, flags))
        uvloop.run(run(config))
    except DenvError as error:
        logging.getLogger("fleets.router").error("%s", error.detail)
        return error.exit_status
    except OSError as error:
        logging.getLogger("fleets.router").error("the router cannot start: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
