"""Runs what the documentation says to type, against denv on a live server whose small world moves on when the script sleeps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from releases.models import DryRun
from releases.reconcile import reconcile
from releases.services.dry_runs import dry_run_run
from tests.integration.rollouts_world import Demo, release_yaml

_LIMIT_S = 120
# `sleep` asks the world for one step, so that a script waits for events and not for the clock.
_PRELUDE = """set -euo pipefail
sleep() { touch step; while [ -e step ]; do command sleep 0.02; done; }
"""


@dataclass
class Shell:
    """A folder, and a user's environment."""

    folder: Path
    demo: Demo
    url: str
    token: str

    def write(self, *, limit: str = "1%", **fields: Any) -> None:
        """The denv.yaml of the next release, with a short rollout."""
        text = (
            release_yaml(**fields)
            .replace("error-rate: 1%", f"error-rate: {limit}")
            .replace("10%, steps: [50%, 100%]", "50%, steps: [100%]")
        )
        (self.folder / "denv.yaml").write_text(text, encoding="utf-8")

    def run(self, script: str, env: Mapping[str, str] | None = None, *, free: bool = False) -> str:
        """What a script of bash prints; AssertionError with all of it when it fails. `free`: the world moves on all the time."""
        path, said = self.folder / "script.sh", self.folder / "said.txt"
        path.write_text(_PRELUDE + script, encoding="utf-8")
        with (
            said.open("w") as out,
            subprocess.Popen(
                ["bash", str(path)], cwd=self.folder, env=self._env(env or {}), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            ) as process,
        ):
            self._beside(process, free)
        assert process.returncode == 0, f"status {process.returncode}\n{said.read_text()}"
        return said.read_text()

    def _env(self, more: Mapping[str, str]) -> dict[str, str]:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        mine = {"PATH": programs, "HOME": str(self.folder), "DENV_HOME": str(self.folder), "DENV_URL": self.url, "DENV_TOKEN": self.token}
        return {"LANG": "C.UTF-8", "no_proxy": "127.0.0.1,localhost", **mine, **more}

    def _beside(self, process: subprocess.Popen[bytes], free: bool) -> None:
        """The workers of denv, until the script has ended."""
        asked, most = self.folder / "step", _LIMIT_S * 50
        for _ in range(most):
            for pk in DryRun.objects.exclude(state=DryRun.State.DONE).values_list("pk", flat=True):
                dry_run_run(id=pk)
            if free or asked.exists():
                self._step()
                asked.unlink(missing_ok=True)
            if ended(process):
                return
        process.kill()

    def _step(self) -> None:
        self.demo.router(requests=400)
        self.demo.fleets.tick(9.0, rounds=2)
        self.demo.router()
        reconcile(self.demo.fleets.now)


def ended(process: subprocess.Popen[bytes], within_s: float = 0.02) -> bool:
    """Whether it has, after a moment of waiting for that."""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True
