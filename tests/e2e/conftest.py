"""One demo instance for all end-to-end tests of the run: real processes, started as `make demo` starts them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from releases.domain.views import StageView
from tests.e2e.instance import Instance


@pytest.fixture(scope="session")
def demo() -> Iterator[Instance]:
    """`denv up --demo`, serving."""
    folder = Path(tempfile.mkdtemp(prefix="denv-e2e-"))
    folder.chmod(0o755)  # PostgreSQL runs under an account of its own
    instance = Instance(folder / "home", demo=True)
    instance.start()
    try:
        instance.until(lambda: "a real trace is replayed" in instance.log(), timeout_s=90, what="the demo serves")
        instance.until(lambda: _steady(instance), timeout_s=60, what="the first rollout is over")
        yield instance
    finally:
        instance.stop()
        left = [process.pid for process in instance.processes()]
        shutil.rmtree(folder, ignore_errors=True)
        assert not left, f"processes {left} outlived `denv up`"


def _steady(instance: Instance) -> bool:
    return instance.client().get("stages/ds-flash/prod-us", StageView).state == "steady"
