"""The port that a node loop starts and ends engines through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from denvweb.core.errors import DenvError
from fleets.agent.ranks import ProcessIdentity

OnExit = Callable[[int | None], None]  # told the exit code; None when it cannot be known


class LaunchError(DenvError):
    """The engine could not be started."""

    code = "launch-failed"


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """One engine process to start."""

    rank_id: str
    argv: tuple[str, ...]
    env: Mapping[str, str]  # the whole environment
    log_path: Path
    replica: str = ""  # launchers that hand whole gangs on start its ranks together
    node: str = ""
    index: int = 0
    count: int = 1  # ranks of the replica
    gpus: int = 1  # of this rank


class Launcher(Protocol):
    """Starts engines so that they outlive the agent, and tells when they end."""

    async def launch(self, order: LaunchOrder, on_exit: OnExit) -> ProcessIdentity:
        """Start one; LaunchError when that fails. `on_exit` is called once, from the event loop."""

    def adopt(self, process: ProcessIdentity, on_exit: OnExit) -> bool:
        """Watch one that an earlier agent started; False when it is gone already."""

    def terminate(self, process: ProcessIdentity) -> None:
        """Ask it to end; nothing happens when it is gone."""

    def kill(self, process: ProcessIdentity) -> None:
        """End it and its helpers by force; nothing happens when it is gone."""

    def close(self) -> None:
        """Stop watching. The engines go on."""
