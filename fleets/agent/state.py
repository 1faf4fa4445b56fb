"""What a node's agent keeps on disk: its credential, the last snapshot, and the ranks that it runs. Written whole or not at all."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from denvweb.core import wire
from denvweb.core.errors import ConflictError, InvalidError
from denvweb.core.files import write_private
from fleets.agent.ranks import Run
from fleets.domain.protocol import NodeSnapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node's file."""

    node: str
    credential: str = ""  # `id.secret`
    snapshot: NodeSnapshot | None = None
    boot_id: str = ""  # the machine's boot that the pids and times of `runs` belong to
    boot: str = ""  # of the agent process whose report was last taken; of this boot of the machine
    runs: dict[str, Run] = field(default_factory=dict)  # by rank id


def node_path(state_path: Path, node: str) -> Path:
    """Where a node's state is."""
    return state_path / "nodes" / f"{node}.json"


def log_path(state_path: Path, rank_id: str) -> Path:
    """Where a rank's engine writes."""
    return state_path / "logs" / f"{rank_id}.log"


def secret_path(state_path: Path, rank_id: str, variable: str) -> Path:
    """Where an engine reads a secret that it wants as a file."""
    return state_path / "secrets" / f"{rank_id}.{variable}"


def drop_secrets(state_path: Path, rank_id: str) -> None:
    """Remove the secrets of a rank that is no more."""
    for path in (state_path / "secrets").glob(f"{rank_id}.*"):
        path.unlink(missing_ok=True)


def load(state_path: Path, node: str, boot_id: str) -> NodeState:
    """The state on disk without the runs of an earlier boot; an empty one when there is none or it cannot be read."""
    state = _read(node_path(state_path, node)) or NodeState(node=node)
    same = state.boot_id == boot_id  # not a disk that was copied to another machine
    runs, boot = (state.runs, state.boot) if same else ({}, "")
    return NodeState(node=node, credential=state.credential, snapshot=state.snapshot, boot_id=boot_id, boot=boot, runs=runs)


def load_all(state_path: Path) -> Iterator[NodeState]:
    """Every readable state file in the folder."""
    for path in sorted((state_path / "nodes").glob("*.json")):
        if state := _read(path):
            yield state


def _read(path: Path) -> NodeState | None:
    try:
        return wire.decode(path.read_bytes(), NodeState)
    except FileNotFoundError:
        return None
    except (InvalidError, OSError) as error:
        log.error("cannot read %s, going on without it (engines are found by their environment): %s", path, error)
        return None


def save(state_path: Path, state: NodeState, *, durable: bool = False) -> None:
    """Replace the file; its mode is 0600 because it holds the credential.

    `durable` also waits for the disk: a credential must survive a power cut, a list of processes need not.
    """
    write_private(node_path(state_path, state.node), wire.encode(state), durable=durable)


def prepare(state_path: Path) -> None:
    """Make the folders; only their owner may look in."""
    for folder in (state_path, state_path / "nodes", state_path / "logs", state_path / "secrets"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def join_key(state_path: Path) -> str:
    """This folder's own key for joining: an agent whose answer was lost shows that it is the one that asked before."""
    path = state_path / "join.key"
    if not path.is_file():
        write_private(path, secrets.token_urlsafe(32).encode(), durable=True)
    return path.read_text(encoding="utf-8").strip()


class StateLock:
    """Held while an agent works on a state folder: two would fight over the same engines."""

    def __init__(self, state_path: Path) -> None:
        self._descriptor = os.open(state_path / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 20, 0).decode().strip() or "unknown"
            os.close(self._descriptor)
            raise ConflictError(
                f"another agent (process {holder}) works with {state_path}; stop it, or pass another --state-dir"
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let go."""
        os.close(self._descriptor)
