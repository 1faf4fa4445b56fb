"""The vLLM lane: denv with real engines on this machine's processors. `make test-vllm` sets up what it needs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.instance import ROOT
from tests.vllm.world import Lab, Tools

FOLDER = Path(os.environ.get("DENV_TEST_VLLM", ROOT / "build" / "vllm"))
HERE = Path(__file__).parent
PRESENT = (FOLDER / ".complete").is_file()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without vLLM's environment these tests are not there; the end of the run says so."""
    return True if not PRESENT and collection_path.name.startswith("test_") and collection_path.parent == HERE else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Said at the end of every run that came by this folder."""
    if PRESENT:
        terminalreporter.write_line(f"vLLM lane: run, with {FOLDER}")
    else:
        terminalreporter.write_line(f"vLLM lane: NOT run, because {FOLDER} is not set up; `make test-vllm` does that and runs it")


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
