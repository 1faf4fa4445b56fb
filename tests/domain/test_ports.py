"""Ports of a rank: four, and more when it holds several groups."""

from __future__ import annotations

import pytest

from fleets.domain.ports import port_count


@pytest.mark.parametrize(
    ("gpus", "tensor_parallel", "ports"),
    [
        (4, 4, 4),
        (4, 8, 4),  # a part of a group
        (8, 4, 8),  # two groups: two side channels, two for events
        (8, 2, 12),
        (8, 1, 20),
    ],
)
def test_ports_of_a_rank(gpus: int, tensor_parallel: int, ports: int) -> None:
    assert port_count(gpus, tensor_parallel) == ports
