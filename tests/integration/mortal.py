"""A program that reconciles for real, and dies where a failpoint says. `Mortal` runs it; each act is a forked process of its own.

mortal = Mortal(database)
died = mortal.act("reconcile", now, armed=["rollout.after-commit"])     # -> "rollout.after-commit", or "" when it lived
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any


class Mortal:
    """The program, with Django loaded once. It never opens a connection itself; each act opens its own and dies with it."""

    def __init__(self, database: str) -> None:
        env = os.environ | {"DJANGO_SETTINGS_MODULE": "denvweb.settings", "MORTAL_DATABASE": database}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.mortal"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def act(self, what: str, now: datetime, *, armed: Iterable[str] = ()) -> str:
        """Do it in a new process. The name of the failpoint at which that was killed; empty when it came to its end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, "now": now.isoformat(), "armed": list(armed)}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert answer["ended"] or answer["died_at"], answer
        died_at: str = answer["died_at"]
        return died_at

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def _fork(order: dict[str, Any]) -> dict[str, Any]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        os.dup2(write, 2)
        os.environ["DENV_FAILPOINT"] = ",".join(f"{name}:kill" for name in order["armed"])
        os._exit(_do(order["what"], datetime.fromisoformat(order["now"])))
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as said:
        text = said.read()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    died_at = text.rstrip().rpartition("failpoint ")[2] if killed else ""
    return {"died_at": died_at, "ended": os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, "said": text[-2000:]}


def _do(what: str, now: datetime) -> int:
    from fleets.reconcile import reconcile as fleets_reconcile
    from releases.reconcile import reconcile
    from releases.services.rollouts import rollback

    try:
        if what == "rollback":
            rollback(stage="ds-flash/prod-us", actor="ada", via="ui", reason="a test")
            return 0
        fleets_reconcile(now)
        return reconcile(now).failures
    except BaseException as error:
        sys.stderr.write(repr(error))
        return 1


def main() -> None:
    """One act a line."""
    import django

    django.setup()
    from django.conf import settings

    import releases.reconcile
    import releases.services.rollouts  # noqa: F401  (all of it before the first fork)

    settings.DATABASES["default"]["NAME"] = os.environ["MORTAL_DATABASE"]
    for line in sys.stdin:
        print(json.dumps(_fork(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
