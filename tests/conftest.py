"""How the suite is spread over its workers, and what its last lines say."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.slurm import lane as slurm_lane
from tests.vllm.lane import sentence

# These start a whole denv. Each chain runs in one worker, one after another: three at once would starve each other on two cores.
_CHAINS = (
    ("tests/chaos/", "tests/e2e/test_kills", "tests/e2e/test_scaling"),
    ("tests/e2e/test_demo", "tests/e2e/test_rollouts", "tests/vllm/"),
)


class TwoInstancesAtATime(LoadScopeScheduling):  # type: ignore[misc]  # xdist's base class is untyped
    """Two chains of whole instances, which wait more than they compute, and every other test wherever there is room."""

    def _split_scope(self, nodeid: str) -> str:
        return next((f"whole instances {chain[0]}" for chain in _CHAINS if nodeid.startswith(chain)), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> TwoInstancesAtATime:
    """xdist's own hook for this."""
    return TwoInstancesAtATime(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Whether real engines had a part in this run is never left open."""
    terminalreporter.write_line(sentence())
    terminalreporter.write_line(slurm_lane.sentence())
