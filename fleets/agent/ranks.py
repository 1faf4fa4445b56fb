"""One rank on this node, and how events change it. Pure: each function takes a `Run` and gives the next one.

    (FETCHING) -> CLAIMED -> STARTING -> READY -> (DRAINING) -> STOPPED -> forgotten
                  |          |
                  +-- died --+--> BACKOFF -> STARTING ... -> FAILED

Times are monotonic seconds of this boot of the machine, so that they also hold for the agent that adopts the rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from denvweb.core.backoff import Backoff
from denvweb.core.units import format_duration
from fleets.domain.protocol import RankSpec
from fleets.domain.types import RankDesired, RankState

# How an engine ends for another rank's fault: the gang broke, its leader never came, its leader refused it.
GANG_EXITS = {3: "another rank of its replica went away", 4: "its leader was not there in time", 5: "its leader refused it"}
DEATHS_MAX = 6
GANG_DEATHS_MAX = 30  # the rank at fault is counted by its own agent; the others only stop when nobody finds the fault
STEADY_S = 60.0  # readiness that lasts this long wipes the slate
BACKOFF = Backoff(first_s=0.5, cap_s=30.0)


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process beyond doubt: the kernel gives a pid again, but not with the same start time."""

    pid: int
    started_ticks: int  # clock ticks since boot, /proc/<pid>/stat field 22


@dataclass(frozen=True, slots=True)
class Run:
    """What the agent knows of one rank. `spec.desired` is what the last snapshot asks for."""

    spec: RankSpec
    state: RankState
    since_s: float  # when it came into `state`
    listed: bool = True  # whether the snapshot still has it
    process: ProcessIdentity | None = None  # not None: it is believed to run
    engine_id: str = ""
    starts: int = 0
    started_s: float = 0.0
    log_offset: int = 0  # length of its log when it was started: what is before is of an earlier process
    ready_s: float | None = None  # when this process became ready
    deaths: int = 0  # in a row, without a steady time in between
    gang_deaths: int = 0  # those of them that were another rank's fault
    next_start_s: float = 0.0
    failed: bool = False
    fetching: bool = False  # its weights are on their way
    term_s: float | None = None  # when SIGTERM went out
    killed: bool = False
    kill_reason: str = ""
    hung_engine: str = ""  # the last process of it that was ended because it hung
    hung_why: str = ""
    detail: str = ""

    @property
    def rank_id(self) -> str:
        """The rank's name."""
        return self.spec.rank_id

    @property
    def wanted(self) -> bool:
        """Whether a dead one is to be started (again)."""
        return self.spec.desired is RankDesired.RUN and not self.failed and not self.fetching

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(0, self.starts - 1)


def _state(run: Run) -> RankState:
    desired = run.spec.desired
    if run.process is not None:
        if desired in (RankDesired.DRAIN, RankDesired.STOP) or run.term_s is not None:
            return RankState.DRAINING
        return RankState.STARTING if run.ready_s is None else RankState.READY
    if desired in (RankDesired.STOP, RankDesired.DRAIN):
        return RankState.STOPPED
    if run.failed:
        return RankState.FAILED
    if run.fetching:
        return RankState.FETCHING
    return RankState.BACKOFF if run.deaths else RankState.CLAIMED


def _settled(run: Run, now_s: float) -> Run:
    state = _state(run)
    return run if state is run.state else replace(run, state=state, since_s=now_s)


def claimed(spec: RankSpec, now_s: float) -> Run:
    """A rank that the snapshot names for the first time."""
    return _settled(Run(spec=spec, state=RankState.CLAIMED, since_s=now_s), now_s)


def retargeted(run: Run, spec: RankSpec, now_s: float) -> Run:
    """The same placement under a new order. Labels may change with it (a release that left this pool as it was)."""
    return _settled(replace(run, spec=spec, listed=True), now_s)


def unlisted(run: Run, now_s: float) -> Run:
    """The snapshot has it no more: an orphan, to be ended and forgotten."""
    return _settled(replace(run, spec=replace(run.spec, desired=RankDesired.STOP), listed=False), now_s)


def launched(run: Run, process: ProcessIdentity, engine_id: str, now_s: float, log_offset: int = 0) -> Run:
    """Its process runs."""
    fresh = replace(run, process=process, engine_id=engine_id, starts=run.starts + 1, started_s=now_s, ready_s=None, log_offset=log_offset)
    return _settled(replace(fresh, term_s=None, killed=False, kill_reason="", detail=""), now_s)


def adopted(run: Run, process: ProcessIdentity, engine_id: str, now_s: float) -> Run:
    """A process of an earlier agent was found running for it, though the state on disk does not know."""
    return launched(run, process, engine_id, now_s)


def weights_told(run: Run, *, ready: bool, failed: str, now_s: float) -> Run:
    """Its weights are there, on their way, or (`failed`, the reason) will not come."""
    if failed and not run.failed:
        return _settled(replace(run, fetching=False, failed=True, detail=failed), now_s)
    return run if run.fetching is not ready else _settled(replace(run, fetching=not ready), now_s)


def became_ready(run: Run, now_s: float) -> Run:
    """Its engine says that it can serve."""
    return _settled(replace(run, ready_s=now_s, detail=""), now_s)


def terminated(run: Run, now_s: float) -> Run:
    """SIGTERM went out."""
    return _settled(replace(run, term_s=now_s), now_s)


def killed(run: Run, reason: str) -> Run:
    """SIGKILL went out; its end is told with `reason`."""
    return replace(run, killed=True, kill_reason=reason)


def hung(run: Run, reason: str) -> Run:
    """SIGKILL went out because its engine hangs: another one is started, and the control plane is told which it was."""
    return replace(killed(run, reason), hung_engine=run.engine_id, hung_why=reason)


def exited(run: Run, code: int | None, last_lines: str, now_s: float, uniform: Callable[[], float]) -> Run:
    """Its process is gone (`code` None: it was nobody's child, so only its end is known; negative: that signal).

    Counted as a death unless it was asked to end. After a steady time the count begins anew.
    """
    ended = replace(run, process=None, ready_s=None, term_s=None, killed=False, kill_reason="")
    asked = run.spec.desired in (RankDesired.STOP, RankDesired.DRAIN) or run.term_s is not None
    how = run.kill_reason or exit_sentence(code)
    if asked:
        return _settled(replace(ended, detail=how), now_s)
    if run.ready_s is not None and now_s - run.ready_s >= STEADY_S:
        ended = replace(ended, deaths=0, gang_deaths=0)
    gang = code in GANG_EXITS and run.spec.count > 1
    lived = format_duration(max(0.0, now_s - run.started_s))
    return _counted(ended, f"{how} after {lived}", last_lines, now_s, uniform, gang=gang)


def launch_failed(run: Run, reason: str, now_s: float, uniform: Callable[[], float]) -> Run:
    """It could not even be started; that counts as a death."""
    return _counted(replace(run, process=None), reason, "", now_s, uniform, gang=False)


def _counted(run: Run, how: str, last_lines: str, now_s: float, uniform: Callable[[], float], *, gang: bool) -> Run:
    deaths, gang_deaths = run.deaths + 1, run.gang_deaths + gang
    log = f"; its last log lines:\n{last_lines}" if last_lines else ""
    if deaths - gang_deaths >= DEATHS_MAX or gang_deaths >= GANG_DEATHS_MAX:
        detail = f"given up after {deaths} deaths in a row, the last: {how}{log}"
        return _settled(replace(run, deaths=deaths, gang_deaths=gang_deaths, failed=True, detail=detail), now_s)
    wait_s = BACKOFF.delay_s(deaths, uniform)
    detail = f"{how}; try {deaths + 1} in {format_duration(wait_s)}{log}"
    return _settled(replace(run, deaths=deaths, gang_deaths=gang_deaths, next_start_s=now_s + wait_s, detail=detail), now_s)


def exit_sentence(code: int | None) -> str:
    """`ended with code 1`, `killed by signal 9`, `ended`."""
    if code is None:
        return "ended"
    why = f" ({GANG_EXITS[code]})" if code in GANG_EXITS else ""
    return f"ended with code {code}{why}" if code >= 0 else f"killed by signal {-code}"
