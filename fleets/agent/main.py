"""`denv agent`: one process, its nodes, and one line to the control plane."""

from __future__ import annotations

import asyncio
import logging
import random
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from denvweb.core.backoff import Backoff
from denvweb.core.errors import DenvError, ForbiddenError, UnavailableError
from denvweb.core.ids import random_id
from denvweb.logs import LineFormatter
from fleets.agent import logs, processes, state
from fleets.agent.config import Config, parse_config
from fleets.agent.engines import AdapterFor
from fleets.agent.gate import StartGate
from fleets.agent.http import HttpClient
from fleets.agent.keeper import EngineTools
from fleets.agent.launchers.process import ProcessLauncher
from fleets.agent.launchers.slurm import SlurmLauncher, SlurmSettings
from fleets.agent.link import ControlLink, PokeListener
from fleets.agent.loop import NodeLoop
from fleets.agent.nodes import plan_nodes
from fleets.agent.processes import Marked
from fleets.agent.weights.store import WeightsStore, default_cache
from fleets.engines.base import adapter_for

log = logging.getLogger(__name__)

_SWEEP_EVERY_S = 30.0
_JOIN_BACKOFF = Backoff(first_s=0.5, cap_s=10.0)


class Agent:
    """All that one agent process is."""

    def __init__(self, config: Config, *, adapters: AdapterFor = adapter_for) -> None:
        """To be called inside the event loop."""
        self._config = config
        self._state_path = config.state_path
        self._client = HttpClient()
        self._link = ControlLink(config.control, self._client)
        self._launcher = _launcher(config)
        self._weights = WeightsStore(Path(config.weights_dir) if config.weights_dir else default_cache())
        tools = EngineTools(
            state_path=self._state_path,
            client=self._client,
            launcher=self._launcher,
            adapter_for=adapters,
            gate=StartGate(),
            speed=config.speed,
            programs=config.programs,
            hung_after_s=config.hung_after_s,
            weights=self._weights,
        )
        self._rejoining = asyncio.Lock()
        self._refused_token = ""
        # Slurm's jobs outlive a boot of the machine that their agent is on.
        boot, machine_boot = random_id("boot"), "slurm" if config.launcher == "slurm" else processes.boot_id()
        self.nodes = {
            facts.name: NodeLoop(
                facts,
                driver,
                state.load(self._state_path, facts.name, machine_boot),
                boot=boot,
                link=self._link,
                tools=tools,
                rejoin=self._rejoin,
            )
            for facts, driver in plan_nodes(config)
        }

    async def run(self) -> None:
        """Run every node until cancelled; those that have not joined yet start once they have."""
        found: dict[str, list[Marked]] = {}
        for marked in processes.find_marked(self._state_path):
            found.setdefault(marked.node, []).append(marked)
        if isinstance(self._launcher, SlurmLauncher):
            runs = (run for node in self.nodes.values() for run in node.keeper.runs.values())
            self._launcher.cancel_strays({run.process.pid for run in runs if run.process is not None})
        try:
            async with asyncio.TaskGroup() as group:
                new = [node for node in self.nodes.values() if not node.credential]
                for name, node in self.nodes.items():
                    if node not in new:
                        group.create_task(node.run(found.get(name, [])))
                if new:
                    await self._join(new)
                for node in new:
                    group.create_task(node.run(found.get(node.facts.name, [])))
                group.create_task(PokeListener(self._config.control, tuple(self.nodes), self._any_credential, self._poked).run())
                group.create_task(self._sweep_forever())
        finally:
            await asyncio.gather(*(node.close(stop_engines=self._config.stop_engines_on_exit) for node in self.nodes.values()))
            await self._weights.close()
            self._launcher.close()
            self._client.close()

    async def _join(self, new: Sequence[NodeLoop]) -> None:
        """Get credentials for nodes that have none. While nobody answers it is tried again; a refused token is an error."""
        failures = 0
        while True:
            try:
                credentials = await self._link.join(self._token(new), [node.facts for node in new], state.join_key(self._state_path))
            except UnavailableError as error:
                log.log(logging.DEBUG if failures else logging.WARNING, "cannot join yet: %s", error)
                failures += 1
                await asyncio.sleep(_JOIN_BACKOFF.delay_s(failures, random.random))
                continue
            if left := [node.facts.name for node in new if node.facts.name not in credentials]:
                raise ForbiddenError(f"the control plane gave no credential to {', '.join(left[:3])}")
            for node in new:
                node.joined(credentials[node.facts.name])
            log.info("joined %d nodes", len(new))
            return

    def _token(self, new: Sequence[NodeLoop]) -> str:
        """The join token; a file that is not there may still come, a flag that was left out will not."""
        token = self._config.read_token()
        if not token and self._config.token_file:
            raise UnavailableError(f"the join token {self._config.token_file} is not there yet")
        if not token:
            names = new[0].facts.name + (f" and {len(new) - 1} more" if len(new) > 1 else "")
            raise ForbiddenError(f"{names} has not joined yet: pass --token or --token-file (`denv token join FLEET` makes one)")
        return token

    async def _rejoin(self, refused: NodeLoop, credential: str) -> bool:
        """Replace refused credentials when there is a token that was not refused yet.

        A token joins once, so all nodes of the fleet join with it: when one is refused, the control plane lost them all.
        """
        async with self._rejoining:
            if refused.credential != credential:
                return True  # another node's refusal has brought new ones for all
            token = self._config.read_token()
            if not token or token == self._refused_token:
                return False
            nodes = [node for node in self.nodes.values() if node.facts.fleet == refused.facts.fleet]
            try:
                credentials = await self._link.join(token, [node.facts for node in nodes], state.join_key(self._state_path))
            except ForbiddenError as error:
                log.warning("cannot join again: %s", error)
                self._refused_token = token
                return False
            for node in nodes:
                node.joined(credentials[node.facts.name])
            log.warning("the control plane did not know our credentials; %d nodes joined again", len(nodes))
            return True

    def _any_credential(self) -> str:
        return next((node.credential for node in self.nodes.values() if node.credential), "")

    def _poked(self, names: Sequence[str]) -> None:
        for name in names or self.nodes:
            if node := self.nodes.get(name):
                node.poke()

    async def _sweep_forever(self) -> None:
        folder = self._state_path / "logs"
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            self._client.sweep()
            known = frozenset(rank_id for node in self.nodes.values() for rank_id in node.keeper.runs)
            try:
                logs.sweep(folder, known)
            except OSError as error:
                log.warning("cannot sweep %s: %s", folder, error)


def _launcher(config: Config) -> ProcessLauncher | SlurmLauncher:
    if config.launcher == "slurm":
        settings = SlurmSettings(partition=config.slurm_partition, extra=tuple(shlex.split(config.slurm_option)))
        return SlurmLauncher(config.state_path, settings)
    return ProcessLauncher()


async def serve(config: Config, *, adapters: AdapterFor = adapter_for) -> None:
    """Run an agent until SIGTERM or SIGINT."""
    task = asyncio.create_task(Agent(config, adapters=adapters).run())
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        log.info("stopped")
    except ExceptionGroup as group:
        told, rest = group.split(DenvError)
        if told is None or rest is not None:
            raise
        raise _leaf(told) from group


def _leaf(error: BaseException) -> BaseException:
    return _leaf(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("websockets").setLevel(logging.WARNING)


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 after a signal, 2 for a wrong flag, else that of the error that is told on stderr."""
    try:
        config = parse_config(argv)
        _log_to_stderr(config.log_level)
        _prepare(config.state_path)
        lock = state.StateLock(config.state_path)
        try:
            asyncio.run(serve(config))
        finally:
            lock.release()
    except DenvError as error:
        sys.stderr.write(f"denv agent: {error.detail}\n")
        return error.exit_status
    return 0


def _prepare(state_path: Path) -> None:
    try:
        state.prepare(state_path)
    except OSError as error:
        raise DenvError(f"cannot use the state folder {state_path}: {error.strerror}; pass another --state-dir") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
