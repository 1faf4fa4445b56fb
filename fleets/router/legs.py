"""Legs beside the one that answers: prefill, and a decode that is only to fetch what prefill keeps for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fleets.router import openai
from fleets.router.exchange import Whole
from fleets.router.heads import AnswerHead
from fleets.router.policy import ReplicaState, UnitState
from fleets.router.services import Services
from fleets.router.taker import Leg, LegError, LegFailure, Taker
from fleets.router.telemetry import now
from fleets.router.upstream import Connection
from fleets.router.wires import Wire

if TYPE_CHECKING:
    from fleets.router.paired import Paired

_NO_MEETING: Mapping[str, Any] = {}
LET_GO_S = 2.0  # how long a decode leg that nobody reads may take to fetch the KV that prefill keeps for it


class PrefillLeg(Whole):
    """The prefill of a job at one replica."""

    __slots__ = ("_body", "_engine_id", "_job", "_live", "_sent_s", "_services", "_tokens", "leg", "replica")

    def __init__(
        self, job: Paired, replica: ReplicaState, services: Services, wire: Wire, meeting: Mapping[str, Any] = _NO_MEETING
    ) -> None:
        """Nothing is under way yet. InvalidError when the client's request cannot be written."""
        self._body = wire.prefill_body(job.ask, meeting)
        self._job = job
        self._services = services
        self._engine_id = replica.engine_id
        held = services.stage.index.held_by(job.blocks, replica.name)
        self._tokens = max(0, job.prompt_tokens - job.held_tokens(held))
        self._live = False
        self._sent_s = 0.0
        self.leg: Leg | None = None
        self.replica = replica

    def send(self) -> None:
        """Send it."""
        job, services, replica, config = self._job, self._services, self.replica, self._services.config
        self._live = True
        replica.running += 1
        replica.tokens += self._tokens
        deadline_s = config.prefill_deadline_s + self._tokens * config.prefill_token_deadline_s
        data, self._body = services.message(job.head, job.leg_id, replica.address, self._body), b""
        self._sent_s = sent_s = now()
        services.pool.send(replica.address, data, self, sent_s=sent_s, first_s=deadline_s, total_s=deadline_s)

    def hang_up(self) -> None:
        """The client left."""
        self._over()
        if self.leg is not None:
            self.leg.hang_up()

    def _over(self) -> None:
        if not self._live:
            return
        self._live = False
        self.replica.running -= 1
        self.replica.tokens -= self._tokens

    # -- Taker --

    def streamed(self, head: AnswerHead, connection: Connection) -> Taker | None:
        """It is not to be one, so it is taken whole."""
        return None

    def answered(self, head: AnswerHead, body: bytes) -> None:
        self._over()
        job, stage, status = self._job, self._services.stage, head.status
        if status >= 500:
            self._fault(None)
            job.prefill_ended(f"status {status} {openai.engine_message(body)}", again=True)
            return
        stage.served(self.replica, self._engine_id)
        if job.pin is not None:
            job.engines.append(self._engine_id)
        if status == 200:
            job.prefilled(head, body, self._sent_s)
        elif status == 429:
            job.prefill_ended(f"status {status} {openai.engine_message(body)}", again=True)
        else:
            job.prefill_refused(head, body)

    def failed(self, error: LegError) -> None:
        self._over()
        self._fault(error.kind)
        # After a timeout the client has waited long enough: decode does it.
        self._job.prefill_ended(str(error), again=error.kind is not LegFailure.TIMEOUT)

    def broken(self) -> None:
        """The router itself failed."""
        self._job.broken()

    def _fault(self, failure: LegFailure | None) -> None:
        self._job.also("prefill.failed")
        self._services.stage.failed(self.replica, failure, self._engine_id)


class PairedLeg(PrefillLeg):
    """A prefill that is under way together with the decode that waits for it. It has a place in the queue until it ends.

    It may end after its job, for decode can have said all before prefill has told that it is done.
    """

    __slots__ = ("_gate", "_release")

    def __init__(self, job: Paired, replica: ReplicaState, services: Services, unit: UnitState, meeting: Mapping[str, Any]) -> None:
        super().__init__(job, replica, services, unit.wire, meeting)
        self._gate = unit.gate
        self._release: Release | None = None  # of its decode, once the client is gone

    def outlive(self, decode: Leg) -> None:
        """The client is gone: go on, for decode keeps its blocks until the KV is there. This leg's own end lets decode go."""
        self._release = release = Release(None)
        decode.hand_to(release)

    def _over(self) -> None:
        if self._live:
            super()._over()
            self._gate.leave()

    def answered(self, head: AnswerHead, body: bytes) -> None:
        self._over()
        job, stage = self._job, self._services.stage
        if self._release is not None:
            self._release.end_within(LET_GO_S if head.status == 200 else 0.0)
        if head.status >= 500:
            stage.failed(self.replica, None, self._engine_id)
        else:
            stage.served(self.replica, self._engine_id)
        if not job.is_paired_with(self):
            return
        if job.pin is not None:
            job.engines.append(self._engine_id)
        if head.status == 200:
            job.paired(body)
        elif head.status >= 500 or head.status == 429:
            job.also("prefill.failed")
            job.pair_failed(f"status {head.status} {openai.engine_message(body)}")
        else:
            job.pair_refused(head, body)

    def failed(self, error: LegError) -> None:
        self._over()
        if self._release is not None:
            self._release.end_within(0.0)
        self._services.stage.failed(self.replica, error.kind, self._engine_id)
        if self._job.is_paired_with(self):
            self._job.also("prefill.failed")
            self._job.pair_failed(str(error), again=error.kind is not LegFailure.TIMEOUT)


class Release:
    """Takes a decode leg that nobody reads any more, for as long as it needs to fetch the KV; then hangs up."""

    __slots__ = ("_ended", "_timer", "leg")

    def __init__(self, within_s: float | None = LET_GO_S) -> None:
        self.leg: Leg | None = None
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        if within_s is not None:
            self.end_within(within_s)

    def end_within(self, within_s: float) -> None:
        """Hang up then, if it did not end before."""
        if not self._ended:
            self._timer = asyncio.get_running_loop().call_later(within_s, self._over)

    def streamed(self, head: AnswerHead, connection: Connection) -> Taker | None:
        return self

    def text(self, data: bytes) -> int:
        return 0

    def events(self, data: bytes, framed: int) -> None:
        if data:
            self._over()

    def ended(self) -> None:
        self._settle()

    def answered(self, head: AnswerHead, body: bytes) -> None:
        self._settle()

    def failed(self, error: LegError) -> None:
        self._settle()

    def _settle(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def _over(self) -> None:
        self._settle()
        if self.leg is not None:
            self.leg.hang_up()
