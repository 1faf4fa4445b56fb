"""How the suite is spread over its two workers."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# These start a whole denv. Two of them at once would starve each other on two cores, so one worker runs them one after another.
_WHOLE_INSTANCES = ("tests/chaos/", "tests/e2e/test_demo", "tests/e2e/test_kills", "tests/e2e/test_rollouts")


class OneInstanceAtATime(LoadScopeScheduling):  # type: ignore[misc]  # xdist's base class is untyped
    """Whole instances together in one worker, every other test wherever there is room."""

    def _split_scope(self, nodeid: str) -> str:
        return "whole instances" if nodeid.startswith(_WHOLE_INSTANCES) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneInstanceAtATime:
    """xdist's own hook for this."""
    return OneInstanceAtATime(config, log)
