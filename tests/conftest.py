"""How the suite is spread over its two workers."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on a whole denv run one after another in one worker, and the rest beside them.

    Two instances at once would starve each other.
    """
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.xdist_group("instance"))
