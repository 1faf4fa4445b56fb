"""One request from read to last byte: choose, queue, prefill, decode, and what happens when a leg fails.

Prefill is tried once more elsewhere, then done locally, as long as nothing was sent to the client. So is what decode could not do
because the KV did not come. Decode is tried once more from the beginning only when the engine took no connection, ended it without a
byte, or was lifeless for as long as prefill keeps the KV. A client that leaves hangs up on whichever leg is
in flight. There is no task: each step is called from the read, or the deadline, that makes it possible.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from denvweb.core.errors import InvalidError
from fleets.domain.routing import Decision, Reason
from fleets.router import openai
from fleets.router.admission import QueueFullError, Waiter
from fleets.router.client import Client
from fleets.router.handover import Opening
from fleets.router.heads import AnswerHead, RequestHead
from fleets.router.legs import PrefillLeg, Release
from fleets.router.openai import Ask
from fleets.router.paired import Paired
from fleets.router.policy import Choice, ReplicaState
from fleets.router.relay import Relay, whole_answer
from fleets.router.responses import ResponsesRelay
from fleets.router.services import Services
from fleets.router.taker import Leg, LegError, LegFailure, Taker
from fleets.router.telemetry import Series, now
from fleets.router.upstream import Connection
from metrics.domain.types import Route

log = logging.getLogger("fleets.router.job")

_KV_LOST = Decision(False, Reason.KV_LOST_LOCAL)


class Job(Paired):
    """One request on its way; it takes the answer of its own decode leg."""

    __slots__ = ("_engine_id", "_prefill", "_waiter")

    def __init__(self, services: Services, head: RequestHead, client: Client, ask: Ask, request_id: bytes, start_s: float) -> None:
        Paired.__init__(self, services, head, client, ask, request_id, start_s)
        self._engine_id = ""
        self._prefill: PrefillLeg | None = None
        self._waiter: Waiter | None = None

    # -- the way --

    def attempt(self, step: Callable[[], None]) -> None:
        """Take a step of the way. Whatever goes wrong, the client must not wait for ever."""
        try:
            step()
        except InvalidError as error:  # what it sent was read, and cannot be written
            self._mistaken(error)
        except Exception as error:
            log.exception("a request failed in the router itself")
            self._services.pool.broken(self, error)

    def start(self) -> None:
        """Choose, and send the first leg or wait for a place."""
        services = self._services
        choice = self._choice = services.stage.choose(self)
        if choice is None:
            self.series = services.nowhere(probe=self.made_here, only=self.only)
            self.refuse(503, "no-unit", "no serving unit can take this request now", retry_after_s=2)
            return
        services.stage.enter(choice)
        if not choice.unit.aggregated:
            self.waiting = choice.unit.gate.depth
        if choice.fallback:
            self.reasons = [Reason.FALLBACK_RELEASE]
        if choice.decision.remote:
            self.series = self._series(choice, Route.REMOTE)
            self._enter(choice)
        else:
            self._decode(choice, None)

    def _enter(self, choice: Choice) -> None:
        gate = choice.unit.gate
        if gate.try_enter():
            self._next_prefill()
            return
        try:
            name = self.client_name or (self.head.header(b"authorization") or self.client.peer.encode()).decode("latin-1")
            self._waiter = gate.wait(name, self._services.stage.prefill_size(choice, self), self._placed)
        except QueueFullError as full:
            self._queue_full(full)

    def _placed(self, full: QueueFullError | None) -> None:
        """The queue has spoken."""
        self._waiter = None
        if full is not None:
            self._queue_full(full)
        else:
            self.attempt(self._next_prefill)

    # -- prefill --

    def _next_prefill(self) -> None:
        """Send a prefill leg; without a replica for it decode does it all. The place in the queue is held."""
        choice = self._choice
        assert choice is not None
        if self.queued_s is None:
            self.queued_s = now()
        replica = self._services.stage.pick_prefill(choice, self) if self._tried < 2 else None
        if replica is None:
            self._prefill_given_up(choice)
            return
        self._tried += 1
        try:
            if choice.unit.wire.concurrent and self._meet(choice, replica):
                return
            leg = PrefillLeg(self, replica, self._services, choice.unit.wire)
        except InvalidError:
            choice.unit.gate.leave()
            raise
        self._prefill = leg
        leg.send()

    def _prefill_given_up(self, choice: Choice) -> None:
        choice.unit.gate.leave()
        self._without_prefill(choice)

    def prefill_ended(self, failure: str, *, again: bool) -> None:
        """A prefill leg gave no KV: try the next, or do it locally."""
        replica, choice = self._take_prefill()
        self.prefill_failure = f"prefill {replica.name}: {failure}"
        self.avoid |= {replica.name}
        if not again or self.pin is not None:
            self._tried = 2
        if self._tried < 2:
            self._next_prefill()
        else:
            self._prefill_given_up(choice)

    def prefilled(self, head: AnswerHead, body: bytes, sent_s: float) -> None:
        """A prefill leg, sent at `sent_s`, answered with status 200."""
        replica, choice = self._take_prefill()
        choice.unit.gate.leave()
        self.prefill_s = now()
        self.prefill_release = replica.spec.release
        self._services.stage.index.add(self.blocks, replica.name)
        reply = openai.json_object(body) or {}
        usage = openai.usage_of(reply)
        self.prefill_cached = usage.cached if usage else None
        wire = choice.unit.wire
        if wire.is_all(reply):
            self.reason, self.usage = choice.decision.reason, usage
            self._all_said(reply)
            return
        kv = wire.handed(self.ask, reply)
        if kv is not None and self._services.leases.stale(sent_s=sent_s, lease_s=choice.unit.spec.kv_lease_s):
            kv = None
        if kv is None:
            self.kv_recomputed = True  # status 200, but there is nothing to fetch: decode computes it all again
            self.unmoved = choice.decode.ledger.tells
        self._decode(choice, kv)

    def prefill_refused(self, head: AnswerHead, body: bytes) -> None:
        """The prefill engine will not do this request, and says why."""
        _, choice = self._take_prefill()
        choice.unit.gate.leave()
        self.reason = choice.decision.reason
        self._pass_on(head, body)

    def _take_prefill(self) -> tuple[ReplicaState, Choice]:
        leg, choice = self._prefill, self._choice
        assert leg is not None and choice is not None
        self._prefill = None
        return leg.replica, choice

    # -- decode --

    def _decode(self, choice: Choice, kv: Mapping[str, Any] | None) -> None:
        services, replica, ask = self._services, choice.decode, self.ask
        if choice.unit.aggregated:
            route = Route.AGGREGATED
        else:
            route = Route.REMOTE if choice.decision.remote else Route.LOCAL
        self.series = self._series(choice, route)
        self.reason = choice.decision.reason
        self.holds_kv = kv is not None and self._pair is None
        self._engine_id = replica.engine_id
        replica.running += 1
        data = services.message(self.head, self.leg_id, replica.address, openai.engine_body(ask, kv))
        self.sent_s = sent_s = now()
        config = services.config
        total_s = config.total_deadline_s
        services.pool.send(
            replica.address, data, self, sent_s=sent_s, first_s=config.first_byte_deadline_s if ask.stream else total_s, total_s=total_s
        )

    def streamed(self, head: AnswerHead, connection: Connection) -> Taker | None:
        """The head of a stream came: without KV to wait for nothing can be tried again from here on."""
        self.head_s = now()
        if self._may_lose_kv:
            self._opening = opening = Opening(self, head, connection)
            return opening
        return self._begin(head, connection)

    @property
    def _may_lose_kv(self) -> bool:
        """Whether decode waits for KV, and what to do without it is the router's to say. A probe is to fail."""
        return (self.holds_kv or self._met is not None) and self.pin is None

    def opened(self, opening: Opening) -> Relay:
        """The first token came, so the KV is there."""
        self._opening = None
        return self._begin(opening.head, opening.connection)

    def _begin(self, head: AnswerHead, connection: Connection) -> Relay:
        self.status = 200
        client = self.client
        kind = ResponsesRelay if self.ask.responds else Relay
        self._relay = kind(client, self, self, wants_usage=self.ask.wants_usage)
        client.feed_from(connection)
        client.begin(self._shown(head))
        return self._relay

    def stream_ended(self) -> None:
        """All of a stream came."""
        relay, choice = self._relay, self._choice
        assert relay is not None and choice is not None
        relay.finish_stream()
        if not relay.done and not relay.failure:
            self._services.stage.failed(choice.decode, LegFailure.CUT, self._engine_id)
            self._cut("the engine ended the stream early")
            return
        if not relay.finished:
            self.client.end()
        self._learn(choice, relay.failure)
        self._end()

    def answered(self, head: AnswerHead, body: bytes) -> None:
        """A whole answer of the decode leg."""
        self.head_s, self.status = now(), head.status
        choice = self._choice
        assert choice is not None
        if head.status == 200:
            body, failure = whole_answer(body, self)
            if failure and self._may_lose_kv:
                self.kv_lost(failure)
                return
            self.client.answer(self._shown(head), body)
            self._learn(choice, failure)
            self._end()
        elif head.status >= 500 and self._may_lose_kv:
            self.kv_lost(openai.engine_message(body))
        elif head.status >= 500:
            self._services.stage.failed(choice.decode, None, self._engine_id)
            detail = openai.engine_message(body)
            message = f"the engine failed: {detail}" if detail else "the engine failed"
            self.refuse(head.status, "decode", message, code="engine_error")
        else:
            self._pass_on(head, body)

    def kv_lost(self, why: str) -> None:
        """Decode failed before it said a word, most likely because the KV did not come: it computes the prompt itself."""
        choice = self._choice
        assert choice is not None
        self.kv_failed, self.unmoved = True, choice.decode.ledger.tells
        self.prefill_failure = f"decode {choice.decode.name}: {why}"
        self._drop_pair()
        if choice.unit.needs_prefill and self._met is not None:
            self._meet_again(choice)
            return
        self._part(choice)
        choice.decision = _KV_LOST
        self._decode(choice, None)

    def failed(self, error: LegError) -> None:
        """The decode leg gave no whole answer."""
        choice, services = self._choice, self._services
        assert choice is not None
        self._opening = None
        self._drop_pair()
        services.stage.failed(choice.decode, error.kind, self._engine_id)
        if self._relay is not None:
            self._cut(str(error))
        elif self.release is not None or self.pin is not None or error.started or error.kind is LegFailure.TIMEOUT:
            self._refuse_for(error)
        else:
            self._again(choice, str(error.kind))

    @property
    def awaited(self) -> tuple[ReplicaState, float, float] | None:
        """See `handover.Holding`."""
        choice, sent_s = self._choice, self.sent_s
        if not self.holds_kv or choice is None or sent_s is None or self.head_s is not None:
            return None
        return choice.decode, sent_s, choice.unit.spec.kv_lease_s

    def lease_lost(self) -> None:
        """Decode stood still since it was asked, and would read what prefill has let go of: all of it again, elsewhere."""
        choice, leg = self._choice, self.leg
        assert choice is not None
        if leg is not None:
            leg.hang_up()
        self.also("kv.expired")
        if self.release is not None or self.pin is not None:
            self.failed(LegError(LegFailure.TIMEOUT, "decode shows no life"))
            return
        self._services.stage.failed(choice.decode, LegFailure.TIMEOUT, self._engine_id)
        self._again(choice, "lease")

    def kv_overdue(self) -> None:
        """Prefill has let go of the KV, and decode has not said a word: it would wait for ever."""
        if self.leg is not None:
            self.leg.hang_up()
        self.also("kv.expired")
        self.kv_lost("the KV did not come within its lease")

    def _again(self, choice: Choice, why: str) -> None:
        """Begin anew without this decode; what prefill said of its KV is not used twice."""
        if self.series is not None:
            self.series.count(f"retried.{why}")
        self.avoid |= {choice.decode.name}
        self.release = choice.release
        self._let_go_of_unit()
        self.restart()
        self._tried, self.holds_kv, self.reasons, self.unmoved, self._met, self.kept_s = 0, False, None, False, None, None
        self.start()

    def _learn(self, choice: Choice, failure: str) -> None:
        stage, decode = self._services.stage, choice.decode
        if failure:
            self.error = "decode"
            self.kv_failed = choice.decision.remote
            self.unmoved = self.unmoved or (self.kv_failed and decode.ledger.tells)
            stage.failed(decode, None, self._engine_id)
            return
        if decode.failures or decode.out_until_s is not None:
            stage.served(decode, self._engine_id)
        if self.pin is not None:
            self.engines.append(self._engine_id)
        if stage.indexed:
            stage.index.add(self.blocks, decode.name)
        usage = self.usage
        if choice.decision.remote and not self.kv_recomputed and self.sent_s is not None and self.series is not None:
            tokens = max(0, (usage.prompt if usage else self.prompt_tokens) - choice.decode_held_tokens)
            decode.ledger.ended(self.series, sent_s=self.sent_s, tokens=tokens)
        if usage is None:
            return
        if stage.indexed and self.ask.exact_tokens is None and self.samples == 1 and self.ask.prompt:
            self._services.ratio.learn(usage.prompt, len(self.ask.prompt))
        if self.prefill_cached is not None:
            # What decode got over the network is in its cache too; only prefill knows what needed no computing.
            self.usage = usage._replace(cached=self.prefill_cached)

    # -- ends --

    def leave(self) -> None:
        """The client is gone: hang up, wherever the request is."""
        if self.over:
            return
        self.cancelled = True
        self._hang_up()
        self._end()

    def run_out(self) -> None:
        """The router ends before the answer does: the client is told, and nobody computes on."""
        if self.over:
            return
        self._hang_up()
        if self._relay is not None:
            self._cut("the router is being stopped")
        else:
            self.refuse(503, "stopping", "the router is being stopped; ask again", retry_after_s=1)

    def broken(self) -> None:
        """The router itself failed; nothing is certain any more but that the client must not wait."""
        if self.over:
            return
        self.error = "router"
        self._hang_up()
        self.client.close()
        self._end()

    def _hang_up(self) -> None:
        choice = self._choice
        if choice is None:
            return
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            choice.unit.gate.withdraw(waiter)
        elif self._prefill is not None:
            leg, self._prefill = self._prefill, None
            leg.hang_up()
            choice.unit.gate.leave()
        elif not self._outlived():
            self._drop_pair()
            self._hang_up_decode()

    def _hang_up_decode(self) -> None:
        if self._opening is not None:
            if self._opening.leg is not None:
                self._let_go(self._opening.leg, fetched=False)
        elif self._relay is not None:
            if self._relay.leg is not None:
                self._let_go(self._relay.leg, fetched=self._relay.seen)
        elif self.leg is not None:
            self._let_go(self.leg, fetched=False)

    def _let_go(self, leg: Leg, *, fetched: bool) -> None:
        """Prefill holds KV until decode has it, and decode frees it when we hang up; so let decode begin first."""
        if self.holds_kv and not fetched:
            leg.hand_to(Release())
        else:
            leg.hang_up()

    def _let_go_of_unit(self) -> None:
        choice = self._choice
        if choice is not None:
            self._let_go_of_decode(choice)
            self._services.stage.leave(choice)
            self._choice = None

    def _let_go_of_decode(self, choice: Choice) -> None:
        if self._engine_id:
            choice.decode.running -= 1
            self._engine_id = ""

    def _end(self) -> None:
        if self.over:
            return
        self.over = True
        if self.error or self.status != 200:
            self._drop_pair()
        self._let_go_of_unit()
        self._relay = self._opening = None  # each holds the other: without this only the collector of cycles would end them
        self.finish(now())
        self._services.ended(self)

    def _series(self, choice: Choice, route: Route) -> Series:
        spec = choice.unit.spec
        prefill, own = self.prefill_release or spec.prefill_release, self.made_here
        return self._services.telemetry.series(spec.unit, prefill, choice.decode.release, route, own, self.pin is None)
