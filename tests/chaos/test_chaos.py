"""A minute of chaos. The seed is in the failure's text; `python -m tests.chaos.run --minutes 1 --seed N` is the same again."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.chaos.run import Chaos
from tests.e2e.instance import Instance

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(720)]


def test_a_minute_of_chaos_violates_nothing() -> None:
    seed = random.SystemRandom().randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="denv-chaos-"))
    folder.chmod(0o755)  # PostgreSQL runs under an account of its own
    chaos = Chaos(Instance(folder / "home", demo=True), seed, 60.0)
    try:
        found = chaos.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert not found, (seed, found, chaos.said, [str(injury) for injury in chaos.record.injuries])
    assert len(chaos.record.injuries) >= 5
    assert chaos.record.journeys
