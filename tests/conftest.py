"""How the suite is spread over its workers, and what its last lines say."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.slurm import lane as slurm_lane
from tests.vllm.lane import sentence

# These start a whole denv. Two of them at once would starve each other on two cores, so one worker runs them one after another.
_WHOLE_INSTANCES = (
    "tests/chaos/", "tests/e2e/test_demo", "tests/e2e/test_kills", "tests/e2e/test_rollouts", "tests/e2e/test_scaling", "tests/vllm/",
)  # fmt: skip


class OneInstanceAtATime(LoadScopeScheduling):  # type: ignore[misc]  # xdist's base class is untyped
    """Whole instances together in one worker, every other test wherever there is room."""

    def _split_scope(self, nodeid: str) -> str:
        return "whole instances" if nodeid.startswith(_WHOLE_INSTANCES) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneInstanceAtATime:
    """xdist's own hook for this."""
    return OneInstanceAtATime(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Whether real engines had a part in this run is never left open."""
    terminalreporter.write_line(sentence())
    terminalreporter.write_line(slurm_lane.sentence())
