"""A request whose two legs are under way at once, while decode waits for what prefill computes.

A prefill that fails takes its decode with it, as long as the client has nothing: both are asked once more with another prefill, then
decode does it alone if it can. What vLLM's decode waits for it waits for for ever, and keeps its blocks for: so a client that leaves
does not end prefill there, and decode is hung up once it has the KV.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fleets.domain.routing import Decision, Reason
from fleets.router import openai
from fleets.router.client import Client
from fleets.router.exchange import Whole
from fleets.router.heads import AnswerHead, RequestHead
from fleets.router.legs import PairedLeg
from fleets.router.openai import Ask
from fleets.router.policy import Choice, ReplicaState
from fleets.router.services import Services
from fleets.router.taker import Leg
from fleets.router.telemetry import now
from fleets.router.wanted import Wanted

if TYPE_CHECKING:
    from fleets.router.handover import Opening
    from fleets.router.relay import Relay

_PREFILL_FAILED = Decision(False, Reason.PREFILL_FAILED_LOCAL)
_NAME_BITS = 128


class Paired(Wanted, Whole):
    """The part of a job that knows of pairs."""

    __slots__ = (
        "_choice", "_met", "_opening", "_pair", "_relay", "_services", "_tried", "engines", "holds_kv", "kept_s", "leg", "over",
        "prefill_failure", "prefill_release",
    )  # fmt: skip

    def __init__(self, services: Services, head: RequestHead, client: Client, ask: Ask, request_id: bytes, start_s: float) -> None:
        Wanted.__init__(self, services, head, client, ask, request_id, start_s)
        self._services = services
        self.leg: Leg | None = None  # of decode
        self.over = False
        self.holds_kv = False  # prefill keeps KV until decode has it
        self.kept_s: float | None = None  # since when, if nothing can make it keep the KV for longer than its lease
        self.prefill_release = ""
        self.prefill_failure = ""
        self.engines: list[str] = []  # engine ids that answered; kept for probes only
        self._choice: Choice | None = None
        self._opening: Opening | None = None
        self._relay: Relay | None = None
        self._pair: PairedLeg | None = None  # prefill that is under way together with decode
        self._met: ReplicaState | None = None  # where that one is, or was
        self._tried = 0

    @abstractmethod
    def prefill_ended(self, failure: str, *, again: bool) -> None:
        """A prefill leg that came first gave no KV."""

    @abstractmethod
    def prefilled(self, head: AnswerHead, body: bytes, sent_s: float) -> None:
        """A prefill leg that came first, sent at `sent_s`, answered with status 200."""

    @abstractmethod
    def prefill_refused(self, head: AnswerHead, body: bytes) -> None:
        """The prefill engine will not do this request, and says why."""

    @abstractmethod
    def broken(self) -> None:
        """The router itself failed."""

    @abstractmethod
    def _enter(self, choice: Choice) -> None:
        """Take a place for prefill, or wait for one."""

    @abstractmethod
    def _decode(self, choice: Choice, kv: Mapping[str, Any] | None) -> None:
        """Send the leg that answers."""

    @abstractmethod
    def _again(self, choice: Choice, why: str) -> None:
        """Begin anew without this decode."""

    @abstractmethod
    def _hang_up_decode(self) -> None:
        """End it."""

    @abstractmethod
    def _let_go_of_decode(self, choice: Choice) -> None:
        """It runs no more."""

    def _meet(self, choice: Choice, replica: ReplicaState) -> bool:
        """Send both legs at once; False when they could not find each other. The place in the queue is prefill's until that leg ends."""
        wire, name = choice.unit.wire, ""
        if wire.owed:  # engines match what comes late or twice by it, so no two tries have the same
            name = f"{random.getrandbits(_NAME_BITS):032x}"
            _, line, rest = self.leg_id.partition(b"\r\n")
            self.leg_id = b"%b.%b%b%b" % (self.request_id, name.encode(), line, rest)
        meeting = wire.meeting(self.ask, replica, name)
        if meeting is None:
            return False
        self._met, self.prefill_release = replica, replica.spec.release
        self._pair = pair = PairedLeg(self, replica, self._services, choice.unit, meeting)
        pair.send()
        self._decode(choice, meeting)
        return True

    def is_paired_with(self, leg: PairedLeg) -> bool:
        """Whether it matters still what becomes of that leg."""
        return self._pair is leg and not self.over

    def paired(self, body: bytes) -> None:
        """Prefill's leg of a pair has answered with status 200, before decode or after its first words."""
        pair, choice, self._pair = self._pair, self._choice, None
        assert pair is not None and choice is not None
        self._services.stage.index.add(self.blocks, pair.replica.name)
        usage = openai.usage_of(openai.json_object(body) or {})
        self.prefill_cached = usage.cached if usage else None
        if choice.unit.wire.keeps and self._relay is None:
            self.holds_kv = True
            if self.head_s is None:
                self.prefill_s = now()
                self.kept_s = self.prefill_s if self.ask.stream else None  # the head of a whole answer says nothing of its first token

    def pair_failed(self, failure: str, *, again: bool = True) -> None:
        """Prefill's leg of a pair failed; decode waits in vain, if it has not spoken yet."""
        pair, choice = self._pair, self._choice
        assert pair is not None and choice is not None
        self._pair = None
        self.prefill_failure = f"prefill {pair.replica.name}: {failure}"
        if self._relay is None:
            self._hang_up_decode()
            if not again and not choice.unit.needs_prefill:
                self._tried = 2
            self._meet_again(choice)

    def pair_refused(self, head: AnswerHead, body: bytes) -> None:
        """The prefill engine will not do this request, and says why; decode has said the same, or waits in vain."""
        self._pair = None
        if self._relay is None:
            self._hang_up_decode()
            self._pass_on(head, body)

    def _meet_again(self, choice: Choice) -> None:
        """Nothing was sent to the client: with another prefill, once."""
        assert self._met is not None
        self.avoid |= {self._met.name}
        self._part(choice)
        if self.pin is None and self._tried < 2:
            self._enter(choice)
        else:
            self._without_prefill(choice)

    def _part(self, choice: Choice) -> None:
        """Decode is asked anew, if at all."""
        self._let_go_of_decode(choice)
        self.head_s = self.kept_s = None
        self._opening = self._met = None

    def _without_prefill(self, choice: Choice) -> None:
        """Decode does it all where it can; else an aggregated unit, if there is one."""
        if self.pin is not None or choice.unit.needs_prefill:
            stage = self._services.stage
            if not self.made_here and self.release is None and stage.can_do_whole():
                self.avoid |= stage.apart
                self._again(choice, "prefill")
            else:
                self.refuse(502, "prefill", self.prefill_failure or "no prefill replica")
            return
        choice.decision = _PREFILL_FAILED
        self.unmoved = choice.decode.ledger.tells
        self._decode(choice, None)

    def _drop_pair(self) -> None:
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.hang_up()

    def _outlived(self) -> bool:
        """The client left. Whether prefill goes on because decode keeps its blocks until the KV is there; decode is then let go by it."""
        pair, choice = self._pair, self._choice
        if pair is None or choice is None or not choice.unit.wire.owed or self._relay is not None:
            return False
        leg = self._opening.leg if self._opening is not None else self.leg
        if leg is None:
            return False
        self._pair = None
        pair.outlive(leg)
        return True
