"""The Slurm lane: `make test-slurm`, as root, where Debian's slurm-wlm and munge are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.lane import RUNS

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without Slurm the command lines are tested, and the end of the run says so."""
    return True if collection_path.name == "test_real.py" and not RUNS else None


@pytest.fixture(scope="session")
def cluster() -> Iterator[Path]:
    """A Slurm of two nodes with four GPUs each, on this machine."""
    folder = Path(tempfile.mkdtemp(prefix="denv-slurm-"))
    script = ["bash", str(HERE / "cluster.sh")]
    started = subprocess.run([*script, "start", str(folder), "2", "4"], capture_output=True, text=True, timeout=90, check=False)
    assert started.returncode == 0, started.stdout + started.stderr
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    try:
        yield folder
    finally:
        subprocess.run([*script, "stop", str(folder)], capture_output=True, timeout=30, check=False)
        del os.environ["SLURM_CONF"]
        shutil.rmtree(folder, ignore_errors=True)
