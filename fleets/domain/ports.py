"""The ports of one rank, counted from the first that the control plane gave it."""

from __future__ import annotations

from dataclasses import dataclass

from fleets.domain.protocol import RankSpec

HTTP = 0
SIDE_CHANNEL = 1  # KV handshakes
GANG = 2  # where the ranks of a replica meet
SPARE = 3
EVENTS = SPARE
REPLAY = GANG  # of KV events: a rank that is alone meets nobody
PORTS_A_RANK = 4


@dataclass(frozen=True, slots=True)
class GroupPorts:
    """Tensor-parallel groups of one replica on one node: each answers KV handshakes and tells KV events on ports of its own."""

    groups: int  # here; 1 also for a part of a group that spans nodes
    first_group: int  # number of the first one here, counted over the replica

    @classmethod
    def of(cls, spec: RankSpec) -> GroupPorts:
        """Those of a rank."""
        groups = group_count(len(spec.gpus), spec.engine.tensor_parallel)
        return cls(groups=groups, first_group=spec.index * len(spec.gpus) // spec.engine.tensor_parallel)

    @property
    def side_channels(self) -> int:
        """Offset of the first group's."""
        return PORTS_A_RANK

    @property
    def events(self) -> int:
        """Offset of the first group's."""
        return PORTS_A_RANK + self.groups


def replay_port(spec: RankSpec) -> int:
    """Where a rank that is a replica of one group answers for KV events that were missed; 0 for all others, which have no port left."""
    return spec.port + REPLAY if spec.count == 1 and group_count(len(spec.gpus), spec.engine.tensor_parallel) == 1 else 0


def group_count(gpus: int, tensor_parallel: int) -> int:
    """Tensor-parallel groups that `gpus` of one node hold, at least one."""
    return max(1, gpus // tensor_parallel)


def port_count(gpus: int, tensor_parallel: int) -> int:
    """Ports that a rank needs: four, and two more for each of its groups when there are several, rounded up to fours."""
    groups = group_count(gpus, tensor_parallel)
    return PORTS_A_RANK if groups == 1 else PORTS_A_RANK * (1 + -(-2 * groups // PORTS_A_RANK))
