"""Asks aiconfigurator for its TPOT. Runs in aiconfigurator's own environment and imports nothing of denv's.

`python sizing_peer_ask.py SECONDS`: lines of `{"id", "arguments"}` in, lines of `{"id", "tpot_ms"}` or `{"id", "why"}` out. What is not
answered within SECONDS is left out.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module


def main() -> None:
    """All lines, or as many as there is time for."""
    until_s = time.monotonic() + float(sys.argv[1])
    out = sys.stdout
    logging.disable(logging.CRITICAL)  # it warns of each table that is not of the very same version
    yaml = import_module("yaml")
    # It reads 500 small files for each estimate. The parser in C reads the same out of them, in less than half of the time.
    vars(yaml)["safe_load"] = partial(yaml.load, Loader=yaml.CSafeLoader)
    with redirect_stdout(sys.stderr):
        estimate = import_module("aiconfigurator.cli.api").cli_estimate
        for line in sys.stdin.read().splitlines():
            if time.monotonic() > until_s:
                break
            asked = json.loads(line)
            try:
                answer: dict[str, object] = {"tpot_ms": float(estimate(**asked["arguments"]).tpot)}
            except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError, OSError) as error:
                answer = {"why": type(error).__name__}
            print(json.dumps({"id": asked["id"], **answer}), file=out, flush=True)


if __name__ == "__main__":
    main()
