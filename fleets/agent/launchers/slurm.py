"""Hands replicas to Slurm: one batch job each, with a task on every node of its gang. Slurm chooses the GPUs of a node, denv how many.

A rank's script lies in the agent's state folder, which the nodes must share. It holds the rank's environment, so that no secret is
an argument, runs the engine, and writes down how it ended. A job is found again by its number, which the agent's files keep.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shlex
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from denvweb.core.files import write_private
from fleets.agent.launchers.base import LaunchError, LaunchOrder, OnExit
from fleets.agent.ranks import ProcessIdentity

log = logging.getLogger(__name__)

GATHER_S = 120.0  # until all ranks of a replica have been ordered
_POLL_S = 1.0
_COMMAND_S = 20.0
_LIVE = frozenset({"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "REQUEUED"})
_NOT_FOR_JOBS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # Slurm's own say which GPUs the task was given


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """How jobs are submitted."""

    partition: str = ""
    account: str = ""
    extra: tuple[str, ...] = ()  # further words for sbatch, as `--qos=high`


@dataclass(slots=True)
class _Gang:
    """Ranks of one replica that are ordered; the job is submitted with the last of them."""

    orders: dict[int, LaunchOrder] = field(default_factory=dict)
    job: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


def sbatch_words(orders: Sequence[LaunchOrder], folder: Path, settings: SlurmSettings, mark: str) -> list[str]:
    """The command line of a replica's job. Nothing of an engine's environment is in it."""
    nodes = sorted(order.node for order in orders)
    gpus = {order.gpus for order in orders}
    if len(set(nodes)) < len(nodes) or len(gpus) != 1:
        raise LaunchError(f"Slurm takes one rank a node with equal GPUs; this replica has {sorted(nodes)} with {sorted(gpus)}")
    words = ["sbatch", "--parsable", f"--job-name=denv-{orders[0].replica}", f"--comment={mark}", "--no-requeue", "--export=NIL"]
    words += [f"--partition={settings.partition}"] if settings.partition else []
    words += [f"--account={settings.account}"] if settings.account else []
    words += [f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}", "--ntasks-per-node=1", f"--gres=gpu:{gpus.pop()}"]
    words += ["--output=/dev/null", "--error=/dev/null", *settings.extra, str(folder / "job.sh")]
    return words


def job_script(folder: Path) -> str:
    """Starts a task on each node; when one ends badly all are ended, as a gang is."""
    task = f'exec sh "{folder}/$SLURMD_NODENAME.sh"'
    return f"#!/bin/sh\nexec srun --export=ALL --kill-on-bad-exit=1 --wait=10 sh -c {shlex.quote(task)}\n"


def rank_script(order: LaunchOrder, folder: Path) -> str:
    """Runs one rank, passes SIGTERM on, and writes down its exit status."""
    kept = {name: value for name, value in sorted(order.env.items()) if name not in _NOT_FOR_JOBS and name.isidentifier()}
    lines = ["#!/bin/sh", *(f"export {name}={shlex.quote(value)}" for name, value in kept.items())]
    lines += [f"exec >> {shlex.quote(str(order.log_path))} 2>&1"]
    # Before the engine: whoever ends the job in its first instant would end this script alone, and leave the engine behind.
    lines += ["child=; ended=", "trap 'ended=1; [ -z \"$child\" ] || kill -TERM $child' TERM"]
    lines += [f"{shlex.join(order.argv)} &", "child=$!", '[ -z "$ended" ] || kill -TERM $child', "wait $child; code=$?"]
    lines += ["while kill -0 $child 2>/dev/null; do wait $child; code=$?; done"]
    lines += [f"echo $code > {shlex.quote(str(folder / f'{order.node}.exit'))}", "exit $code"]
    return "\n".join(lines) + "\n"


class SlurmLauncher:
    """Launcher of all nodes of an agent that stands for Slurm's nodes. An identity is the job's number and the rank's index."""

    def __init__(self, state_path: Path, settings: SlurmSettings) -> None:
        self._folder = state_path / "slurm"
        self._settings = settings
        self._mark = f"denv:{state_path}"
        self._gangs: dict[str, _Gang] = {}
        self._watched: dict[ProcessIdentity, tuple[OnExit, str]] = {}  # and the rank's node
        self._poll: asyncio.Task[None] | None = None
        self.failures_total = 0

    async def launch(self, order: LaunchOrder, on_exit: OnExit) -> ProcessIdentity:
        """Submit the replica's job once all of its ranks are ordered; LaunchError when they are not in time, or Slurm refuses."""
        gang = self._gangs.setdefault(order.replica, _Gang())
        gang.orders[order.index] = order
        if len(gang.orders) == order.count:
            self._gangs.pop(order.replica)
            try:
                gang.job.set_result(await self._submit(list(gang.orders.values())))
            except LaunchError as error:
                gang.job.set_exception(error)
        try:
            async with asyncio.timeout(GATHER_S):
                job = await asyncio.shield(gang.job)
        except TimeoutError:
            gang.orders.pop(order.index, None)
            raise LaunchError(
                f"{len(gang.orders) + 1} of {order.count} ranks of the replica were ordered within {GATHER_S:.0f} s"
            ) from None
        identity = ProcessIdentity(pid=job, started_ticks=order.index)
        self._watch(identity, order.node, on_exit)
        return identity

    async def _submit(self, orders: Sequence[LaunchOrder]) -> int:
        folder = self._folder / orders[0].replica
        words = sbatch_words(orders, folder, self._settings, self._mark)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for order in orders:
                (folder / f"{order.node}.exit").unlink(missing_ok=True)
                write_private(folder / f"{order.node}.sh", rank_script(order, folder))
            write_private(folder / "job.sh", job_script(folder))
        except OSError as error:
            raise LaunchError(f"cannot write the job's scripts in {folder}: {error.strerror}") from error
        answer = await _run(words)
        number = answer.strip().partition(";")[0]
        if not number.isdigit():
            raise LaunchError(f"sbatch answered {answer.strip()[:200]!r} instead of a job's number")
        nodes = {str(order.index): order.node for order in orders}
        write_private(self._folder / f"job-{number}.json", json.dumps({"folder": str(folder), "nodes": nodes}))
        log.info("replica %s is Slurm's job %s", orders[0].replica, number)
        return int(number)

    def adopt(self, process: ProcessIdentity, on_exit: OnExit) -> bool:
        """Watch the rank of a job that an earlier agent submitted; while Slurm does not answer it is taken to run."""
        states = _states_now([process.pid])
        if states is not None and states.get(process.pid, "") not in _LIVE:
            return False
        self._watch(process, self._known(process.pid).get(str(process.started_ticks), ""), on_exit)
        return True

    def terminate(self, process: ProcessIdentity) -> None:
        """SIGTERM to the engines of the job: a gang ends as one."""
        self._cancel(process, "--signal=TERM")

    def kill(self, process: ProcessIdentity) -> None:
        """End the job by force."""
        self._cancel(process, "--signal=KILL")
        self._cancel(process)

    def close(self) -> None:
        """Watch no more. The jobs go on."""
        if self._poll is not None:
            self._poll.cancel()

    def cancel_strays(self, known: Collection[int]) -> None:
        """End jobs of this state folder that no file knows: an agent was killed between their submission and its next write."""
        try:
            listed = subprocess.run(["squeue", "-h", "--me", "-o", "%i|%k"], capture_output=True, text=True, timeout=_COMMAND_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("cannot list Slurm's jobs: %s", error)
            return
        for line in listed.stdout.splitlines():
            number, _, comment = line.partition("|")
            if comment == self._mark and number.isdigit() and int(number) not in known:
                log.warning("cancelling Slurm's job %s, which no rank is known for", number)
                self._cancel(ProcessIdentity(int(number), 0))

    def _cancel(self, process: ProcessIdentity, *options: str) -> None:
        # In the background: a controller that hangs must not hold up the event loop. What fails is seen by its job going on.
        with contextlib.suppress(OSError):
            subprocess.Popen(["scancel", *options, str(process.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    # ---- watching ----

    def _watch(self, process: ProcessIdentity, node: str, on_exit: OnExit) -> None:
        self._watched[process] = (on_exit, node)
        if self._poll is None or self._poll.done():
            self._poll = asyncio.create_task(self._poll_forever())

    async def _poll_forever(self) -> None:
        while self._watched:
            await asyncio.sleep(_POLL_S)
            try:
                await self._look()
            except LaunchError as error:
                log.warning("Slurm does not say how its jobs are: %s", error)
            except Exception:  # the top of the loop
                self.failures_total += 1
                log.exception("looking at Slurm's jobs failed (%d such failures)", self.failures_total)

    async def _look(self) -> None:
        jobs = sorted({process.pid for process in self._watched})
        listed = parse_states(await _run(["squeue", "-h", "-t", "all", "-o", "%i|%T", "-j", ",".join(map(str, jobs))], missing_ok=True))
        for process, (on_exit, node) in list(self._watched.items()):
            if listed.get(process.pid, "") not in _LIVE:
                del self._watched[process]
                on_exit(self._exit_code(process.pid, node))

    def _exit_code(self, job: int, node: str) -> int | None:
        """What the rank's script wrote down; None when it was ended before it could."""
        folder = self._known(job).get("folder", "")
        try:
            code = int((Path(folder) / f"{node}.exit").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return -(code - 128) if code > 128 else code

    def _known(self, job: int) -> Mapping[str, str]:
        """The job's folder, and its nodes by rank."""
        try:
            kept = json.loads((self._folder / f"job-{job}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {"folder": kept["folder"], **kept["nodes"]}


def parse_states(text: str) -> dict[int, str]:
    """States by job of `squeue -o %i|%T`."""
    rows = (line.split("|") for line in text.splitlines() if "|" in line)
    return {int(row[0]): row[1] for row in rows if row[0].isdigit()}


def _states_now(jobs: Sequence[int]) -> dict[int, str] | None:
    """States of jobs, at once; None when Slurm does not answer."""
    words = ["squeue", "-h", "-t", "all", "-o", "%i|%T", "-j", ",".join(map(str, jobs))]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode and "Invalid job id" not in done.stderr:
        return None
    return parse_states(done.stdout)


async def _run(words: Sequence[str], *, missing_ok: bool = False) -> str:
    """Standard output; LaunchError with Slurm's own words. `missing_ok`: jobs that are forgotten are no error."""
    try:
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    except FileNotFoundError:
        raise LaunchError(f"{words[0]} is not on the path: is Slurm installed here?") from None
    try:
        async with asyncio.timeout(_COMMAND_S):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        raise LaunchError(f"{words[0]} did not answer within {_COMMAND_S:.0f} s: is slurmctld there?") from None
    said = err.decode(errors="replace").strip()
    if process.returncode and not (missing_ok and "Invalid job id" in said):
        raise LaunchError(f"{words[0]} failed: {said.removeprefix(f'{words[0]}: error: ')[:300]}")
    return out.decode(errors="replace")
