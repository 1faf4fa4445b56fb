"""Places at which a process can be made to die, so that tests can see what it leaves behind.

`DENV_FAILPOINT=rollout.after-commit:kill` ends the process by SIGKILL the first time it gets there; several are written with commas.
Nothing is done, and nothing can be asked for from outside the process, when the variable is not set.
"""

from __future__ import annotations

import os
import signal
import sys


def reach(name: str) -> None:
    """The process is at this place now."""
    armed = os.environ.get("DENV_FAILPOINT")
    if armed and f"{name}:kill" in armed.split(","):
        sys.stderr.write(f"failpoint {name}\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
