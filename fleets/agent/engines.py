"""From a rank to the process that runs it: the engine adapter's command in an environment of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from denvweb.core.files import write_private
from fleets.agent import processes, state
from fleets.agent.launchers.base import LaunchOrder
from fleets.domain.protocol import NodeFacts, RankSpec
from fleets.engines.base import EngineAdapter, LaunchCommand

AdapterFor = Callable[[str, bool], EngineAdapter]  # engine name, simulated
_NOT_FOR_ENGINES = ("DENV_", "DATABASE_URL", "REDIS_URL")  # an engine runs code that comes with models: it gets no secret of ours


def launch_order(
    command: LaunchCommand, spec: RankSpec, facts: NodeFacts, engine_id: str, state_path: Path, secrets: Mapping[str, str] | None = None
) -> LaunchOrder:
    """The process to start. The marks let an agent that lost its files find the engine again."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_ENGINES)}
    marks = {
        processes.MARK_STATE: str(state_path),
        processes.MARK_NODE: facts.name,
        processes.MARK_RANK: spec.rank_id,
        processes.MARK_ENGINE: engine_id,
    }
    # In the order of the bus, as NVML and denv number them; CUDA's own order puts the fastest first.
    marks["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    log_path = state.log_path(state_path, spec.rank_id)
    given = secret_environment(state_path, spec.rank_id, secrets or {})
    return LaunchOrder(
        rank_id=spec.rank_id,
        argv=tuple(command.argv),
        env=kept | dict(command.env) | given | marks,
        log_path=log_path,
        replica=spec.replica,
        node=facts.launch_name or facts.name,
        index=spec.index,
        count=spec.count,
        gpus=len(spec.gpus),
    )


def secret_environment(state_path: Path, rank_id: str, secrets: Mapping[str, str]) -> dict[str, str]:
    """Variables of an engine. One whose name ends with `_FILE` names a file that only the engine's user may read; none is an argument."""
    given = {}
    for variable, value in secrets.items():
        if variable.endswith("_FILE"):
            path = state.secret_path(state_path, rank_id, variable)
            write_private(path, value)
            value = str(path)
        given[variable] = value
    return given
