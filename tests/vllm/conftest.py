"""The vLLM lane: denv with real engines on this machine's processors. `make test-vllm` sets up what it needs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.lane import FOLDER, runs
from tests.vllm.world import Lab, Tools

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What this run leaves out is not there; the end of the run says so."""
    mine = collection_path.parent == HERE and collection_path.name.startswith("test_")
    return True if mine and not runs(collection_path.name) else None


@pytest.fixture(scope="session")
def tools() -> Tools:
    """vLLM's environment and the tiny model."""
    return Tools(FOLDER.absolute())


@pytest.fixture(scope="session")
def lab(tools: Tools) -> Iterator[Lab]:
    """`denv up` without its demo, and one real node whose agent runs vLLM."""
    folder = Path(tempfile.mkdtemp(prefix="denv-vllm-"))
    folder.chmod(0o755)  # PostgreSQL runs under an account of its own
    lab = Lab(folder, tools)
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()
        left = [process.pid for process in lab.denv.processes()]
        if os.environ.get("DENV_TEST_KEEP"):
            print(f"kept {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        assert not left, f"processes {left} outlived the lab"
