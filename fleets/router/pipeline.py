"""One request from read to last byte: choose, queue, prefill, decode, and what happens when a leg fails.

Prefill is tried once more elsewhere, then done locally, as long as nothing was sent to the client. Decode is tried once more from
the beginning only when the engine took no connection or ended it without a byte. A client that leaves cancels the task that
runs this, and so hangs up on whichever leg is in flight.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import dataclass, field, replace
from typing import Any

from denvweb.core.errors import InvalidError
from fleets.domain.routing import Decision, Reason
from fleets.router import openai
from fleets.router.admission import QueueFullError
from fleets.router.client import Client, Request
from fleets.router.config import Config
from fleets.router.openai import Ask
from fleets.router.policy import Choice, Pin, ReplicaState, Stage, Want
from fleets.router.prefix import blocks_of
from fleets.router.relay import Relay, whole_answer
from fleets.router.telemetry import Series, Telemetry, Trace, now
from fleets.router.upstream import Collected, Headers, LegError, LegFailure, Pool, exchange
from metrics.domain.types import Route

LET_GO_S = 2.0  # how long a decode leg that nobody reads may take to fetch the KV that prefill keeps for it

_JSON = (b"content-type", b"application/json")
_OWN_HEADERS = frozenset(
    {
        b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"expect", b"accept-encoding",
        b"x-request-id", b"upgrade", b"te", b"trailer", b"proxy-connection", b"proxy-authorization", b"http2-settings",
    }
)  # fmt: skip


class RefusalError(Exception):
    """An answer of the router's own: status, class for the counters (empty: not an error of ours), sentence."""

    def __init__(self, status: int, kind: str, message: str, *, code: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.code = code or kind.replace("-", "_")
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class Job:
    """One request on its way."""

    request: Request
    client: Client
    ask: Ask
    trace: Trace
    want: Want
    request_id: bytes
    answered: bool = False
    prefill_cached: int | None = None  # as the prefill engine said
    prefill_release: str = ""
    engines: list[str] = field(default_factory=list)  # engine ids that answered
    prefill_failure: str = ""


class TokenRatio:
    """Tokens in a byte of prompt, learnt from what engines say; old requests fade."""

    def __init__(self) -> None:
        self._tokens, self._bytes = 2_500.0, 10_000.0

    @property
    def value(self) -> float:
        """Tokens for each byte."""
        return self._tokens / self._bytes

    def learn(self, tokens: int, size_bytes: int) -> None:
        """One prompt's truth."""
        self._tokens = self._tokens * 0.99 + tokens
        self._bytes = self._bytes * 0.99 + size_bytes


class Pipeline:
    """Runs requests on a stage."""

    def __init__(self, config: Config, stage: Stage, pool: Pool, telemetry: Telemetry) -> None:
        self._config = config
        self._stage = stage
        self._pool = pool
        self._telemetry = telemetry
        self._ratio = TokenRatio()
        self._session_header = config.session_header.lower().encode()
        self._leaving: set[asyncio.Task[None]] = set()
        self._boot = os.urandom(8).hex().encode()
        self._serial = 0

    async def serve(self, request: Request, client: Client, *, pin: Pin | None = None) -> Job | None:
        """Answer one generation request; None when it was no valid one."""
        trace = Trace(now())
        request_id = request.header(b"x-request-id") or self._next_id()
        try:
            ask = self._ask(request)
        except InvalidError as error:
            status = 404 if error.code == "model_not_found" else 400
            body = openai.error_body(error.detail, kind="invalid_request_error", code=error.code)
            client.respond(status, body, [_JSON, (b"x-request-id", request_id)])
            return None
        job = Job(request, client, ask, trace, self._want(request, ask, pin), request_id)
        try:
            await self._run(job)
        except RefusalError as refusal:
            self._refuse(job, refusal)
        except asyncio.CancelledError:
            trace.cancelled = True
            raise
        finally:
            trace.finish(now())
        return job

    def _next_id(self) -> bytes:
        """Unique to this process and its like: random once, then counted."""
        self._serial += 1
        return b"req-%b%08x" % (self._boot, self._serial)

    def _ask(self, request: Request) -> Ask:
        ask = openai.parse(request.path, request.body)
        table = self._stage.table
        if table is not None and ask.model != table.model:
            raise InvalidError(f"the model `{ask.model}` does not exist here; this is `{table.model}`", code="model_not_found")
        return ask

    def _want(self, request: Request, ask: Ask, pin: Pin | None) -> Want:
        session = request.header(self._session_header)
        point = int.from_bytes(hashlib.blake2b(session, digest_size=7).digest(), "big") / 2.0**56 if session else None
        ratio = 0.25 if ask.exact_tokens is not None else self._ratio.value
        tokens = ask.exact_tokens if ask.exact_tokens is not None else int(len(ask.prompt) * ratio)
        return Want(blocks_of(ask.prompt), tokens, ratio, samples=ask.samples, session_point=point, pin=pin)

    async def _run(self, job: Job) -> None:
        for last in (False, True):
            choice = self._stage.choose(job.want)
            if choice is None:
                self._count_nowhere(job)
                raise RefusalError(503, "no-unit", "no serving unit can take this request now", retry_after_s=2)
            try:
                await self._counted_attempt(job, choice)
            except LegError as error:
                if last or job.want.pin is not None or error.started or error.kind is LegFailure.TIMEOUT:
                    raise _refusal_of(error) from error
                if job.trace.series is not None:
                    job.trace.series.count(f"retried.{error.kind}")
                job.want = replace(job.want, avoid=job.want.avoid | {choice.decode.name}, release=choice.release)
                job.trace.restart()
            else:
                return

    async def _counted_attempt(self, job: Job, choice: Choice) -> None:
        """The request counts as in flight on its unit and release."""
        unit, release, inflight = choice.unit, choice.unit.spec.release, self._stage.inflight
        unit.inflight += 1
        inflight[release] = inflight.get(release, 0) + 1
        try:
            await self._attempt(job, choice)
        finally:
            unit.inflight -= 1
            inflight[release] -= 1
            if not inflight[release]:
                del inflight[release]

    async def _attempt(self, job: Job, choice: Choice) -> None:
        trace = job.trace
        trace.reasons = [Reason.FALLBACK_RELEASE.value] if choice.fallback else []
        trace.prompt_tokens = job.want.prompt_tokens
        kv: dict[str, Any] | None = None
        if choice.decision.remote:
            trace.series = self._series(job, choice, Route.REMOTE)
            kv = await self._queued_prefill(job, choice)
            if job.answered:
                trace.reasons.append(choice.decision.reason.value)
                return
        route = Route.AGGREGATED if choice.unit.aggregated else Route.REMOTE if choice.decision.remote else Route.LOCAL
        trace.series = self._series(job, choice, route)
        trace.reasons.append(choice.decision.reason.value)
        await self._decode(job, choice, kv)

    # -- prefill --

    async def _queued_prefill(self, job: Job, choice: Choice) -> dict[str, Any] | None:
        gate = choice.unit.gate
        key = (job.request.header(b"authorization") or job.request.peer.encode()).decode("latin-1")
        try:
            await gate.enter(key)
        except QueueFullError as full:
            raise RefusalError(429, "queue-full", f"the service is busy: {full.detail}", retry_after_s=full.retry_after_s) from full
        job.trace.queued_s = now()
        try:
            return await self._prefill(job, choice)
        finally:
            gate.leave()

    async def _prefill(self, job: Job, choice: Choice) -> dict[str, Any] | None:
        """KV parameters for decode. None: answered already, or to be done locally, or prefill kept no KV."""
        for _ in range(2):
            replica = self._stage.pick_prefill(choice, job.want)
            if replica is None:
                break
            try:
                answer = await self._prefill_leg(job, choice, replica)
            except LegError as error:
                job.prefill_failure = f"prefill {replica.name}: {error}"
                if error.kind is LegFailure.TIMEOUT:
                    break  # the client has waited long enough: decode does it
            else:
                if answer.status == 200:
                    return self._handover(job, replica, answer)
                if answer.status < 500 and answer.status != 429:
                    _pass_on(job, answer.status, answer.content, answer.headers)
                    return None
                job.prefill_failure = f"prefill {replica.name}: status {answer.status} {openai.engine_message(answer.content)}"
            if job.want.pin is not None:
                break
            job.want = replace(job.want, avoid=job.want.avoid | {replica.name})
        if job.want.pin is not None:
            raise RefusalError(502, "prefill", job.prefill_failure or "no prefill replica")
        choice.decision = Decision(False, Reason.PREFILL_FAILED_LOCAL)
        return None

    async def _prefill_leg(self, job: Job, choice: Choice, replica: ReplicaState) -> Collected:
        held = self._stage.index.held_bytes(job.want.blocks, [replica.name])[0]
        tokens = max(0, job.want.prompt_tokens - job.want.tokens(held))
        deadline_s = self._config.prefill_deadline_s + tokens * self._config.prefill_token_deadline_s
        engine_id, answer = replica.engine_id, Collected()
        replica.running += 1
        replica.tokens += tokens
        try:
            data = self._message(job, replica, openai.prefill_body(job.ask))
            await exchange(self._pool, replica.address, data, answer, first_byte_s=deadline_s, total_s=deadline_s)
        except LegError as error:
            self._fault(job, replica, error.kind, engine_id)
            raise
        except asyncio.CancelledError:
            self._let_go_of(job, choice, answer)
            raise
        finally:
            replica.running -= 1
            replica.tokens -= tokens
        if answer.status >= 500:
            self._fault(job, replica, None, engine_id)
        else:
            self._stage.served(replica, engine_id)
            job.engines.append(engine_id)
        return answer

    def _fault(self, job: Job, replica: ReplicaState, failure: LegFailure | None, engine_id: str) -> None:
        name = "prefill.failed"
        job.trace.extra[name] = job.trace.extra.get(name, 0) + 1
        self._stage.failed(replica, failure, engine_id)

    def _handover(self, job: Job, replica: ReplicaState, answer: Collected) -> dict[str, Any] | None:
        job.trace.prefill_s = now()
        job.prefill_release = replica.spec.release
        self._stage.index.add(job.want.blocks, replica.name)
        reply = openai.json_object(answer.content) or {}
        usage = openai.usage_of(reply)
        job.prefill_cached = usage.cached if usage else None
        kv = reply.get("kv_transfer_params")
        if not kv:
            job.trace.kv_recomputed = True  # status 200, but there is nothing to fetch: decode computes it all again
            return None
        return dict(kv)

    # -- decode --

    async def _decode(self, job: Job, choice: Choice, kv: dict[str, Any] | None) -> None:
        replica = choice.decode
        engine_id = replica.engine_id
        relay = Relay(job.client, job.ask, job.trace, job.request_id)
        tokens = 0 if choice.decision.remote else max(0, job.want.prompt_tokens - choice.decode_held_tokens)
        data = self._message(job, replica, openai.engine_body(job.ask, kv))
        replica.running += 1
        replica.tokens += tokens
        job.trace.sent_s = now()
        try:
            await self._decode_leg(job, replica, relay, data, holds_kv=kv is not None)
        except LegError as error:
            self._stage.failed(replica, error.kind, engine_id)
            if not relay.streaming:
                raise
            self._cut(job, relay, str(error))
        else:
            self._answered(job, choice, relay, engine_id)
        finally:
            replica.running -= 1
            replica.tokens -= tokens

    async def _decode_leg(self, job: Job, replica: ReplicaState, relay: Relay, data: bytes, *, holds_kv: bool) -> None:
        total_s = self._config.total_deadline_s
        first_s = self._config.first_byte_deadline_s if job.ask.stream else total_s
        leg = exchange(self._pool, replica.address, data, relay, first_byte_s=first_s, total_s=total_s)
        if not holds_kv:
            await leg
            return
        task = asyncio.ensure_future(leg)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if relay.seen:
                task.cancel()
            else:
                self._in_background(self._let_go(task, relay))
            raise

    def _answered(self, job: Job, choice: Choice, relay: Relay, engine_id: str) -> None:
        failure = ""
        if relay.streaming:
            relay.finish_stream()
            failure = relay.failure
            if not relay.done and not failure:
                self._stage.failed(choice.decode, LegFailure.CUT, engine_id)
                self._cut(job, relay, "the engine ended the stream early")
                return
            job.client.end()
        elif relay.status == 200:
            body, failure = whole_answer(relay.content, job.trace)
            job.client.respond(200, body, relay.headers)
        elif relay.status >= 500:
            self._stage.failed(choice.decode, None, engine_id)
            detail = openai.engine_message(relay.content)
            raise RefusalError(
                relay.status, "decode", f"the engine failed: {detail}" if detail else "the engine failed", code="engine_error"
            )
        else:
            _pass_on(job, relay.status, relay.content, relay.headers)
            return
        self._learn(job, choice, failure, engine_id)

    def _learn(self, job: Job, choice: Choice, failure: str, engine_id: str) -> None:
        trace = job.trace
        if failure:
            trace.error = "decode"
            trace.kv_failed = choice.decision.remote
            self._stage.failed(choice.decode, None, engine_id)
            return
        self._stage.served(choice.decode, engine_id)
        job.engines.append(engine_id)
        self._stage.index.add(job.want.blocks, choice.decode.name)
        if choice.decision.remote and not trace.kv_recomputed and trace.sent_s is not None:
            tokens = max(0, (trace.usage.prompt if trace.usage else job.want.prompt_tokens) - choice.decode_held_tokens)
            choice.decode.ledger.ended(sent_s=trace.sent_s, tokens=tokens)
        if trace.usage is None:
            return
        if job.ask.exact_tokens is None and job.ask.samples == 1 and job.ask.prompt:
            self._ratio.learn(trace.usage.prompt, len(job.ask.prompt))
        if job.prefill_cached is not None:
            # What decode got over the network is in its cache too; only prefill knows what needed no computing.
            trace.usage = replace(trace.usage, cached=job.prefill_cached)

    # -- ends --

    def _cut(self, job: Job, relay: Relay, why: str) -> None:
        job.trace.error = "stream-cut"
        body = openai.error_body(f"the answer ended early: {why}", kind="server_error", code="stream_cut")
        job.client.write(b"data: " + body + b"\n\n")
        job.client.end()

    def _refuse(self, job: Job, refusal: RefusalError) -> None:
        job.trace.error = refusal.kind
        headers: Headers = [_JSON, (b"x-request-id", job.request_id)]
        if refusal.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(refusal.retry_after_s))))
        kind = "rate_limit_error" if refusal.status == 429 else "server_error"
        job.client.respond(refusal.status, openai.error_body(refusal.message, kind=kind, code=refusal.code), headers)

    def _let_go_of(self, job: Job, choice: Choice, answer: Collected) -> None:
        """The client left in the instant in which prefill answered: fetch the KV to free it."""
        reply = openai.json_object(answer.content)  # None: it is not whole, and hanging up has freed the KV
        kv = reply.get("kv_transfer_params") if reply else None
        if answer.status == 200 and kv:
            data = self._message(job, choice.decode, openai.release_body(job.ask, kv))
            leg = exchange(self._pool, choice.decode.address, data, Collected(), first_byte_s=LET_GO_S, total_s=LET_GO_S)
            self._in_background(self._let_go(asyncio.ensure_future(leg), None))

    async def _let_go(self, leg: asyncio.Task[None], relay: Relay | None) -> None:
        """Prefill holds KV until decode has it, and decode frees it when we hang up; so let decode begin first."""
        waits: set[asyncio.Future[None]] = {leg}
        if relay is not None:
            relay.began = asyncio.get_running_loop().create_future()
            waits.add(relay.began)
        await asyncio.wait(waits, timeout=LET_GO_S, return_when=asyncio.FIRST_COMPLETED)
        leg.cancel()
        await asyncio.gather(leg, return_exceptions=True)

    def _in_background(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _message(self, job: Job, replica: ReplicaState, body: bytes) -> bytes:
        host, port = replica.address
        lines = [b"%b: %b\r\n" % header for header in job.request.headers if header[0] not in _OWN_HEADERS]
        return b"POST %b HTTP/1.1\r\nhost: %b:%d\r\n%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b" % (
            job.request.target, host.encode(), port, b"".join(lines), job.request_id, len(body), body,
        )  # fmt: skip

    def _series(self, job: Job, choice: Choice, route: Route) -> Series:
        spec = choice.unit.spec
        return self._telemetry.series(
            unit=spec.unit,
            prefill_release=job.prefill_release or spec.prefill_release,
            decode_release=choice.decode.spec.release,
            route=route,
            probe=choice.pin is not None,
        )

    def _count_nowhere(self, job: Job) -> None:
        """A request without a unit still counts: to the release with the most weight."""
        weights = self._stage.weights
        release = max(weights, key=lambda name: weights[name], default="")
        job.trace.series = self._telemetry.series(
            unit="", prefill_release=release, decode_release=release, route=Route.LOCAL, probe=job.want.pin is not None
        )


def _pass_on(job: Job, status: int, body: bytes, headers: Headers) -> None:
    """An engine's own 4xx: the client's to read, and no error of ours."""
    job.answered = True
    job.trace.extra["client-errors"] = 1
    kept = [header for header in headers if header[0] in (b"content-type", b"retry-after")]
    job.client.respond(status, body, [*kept, (b"x-request-id", job.request_id)])


def _refusal_of(error: LegError) -> RefusalError:
    if error.kind is LegFailure.TIMEOUT:
        return RefusalError(504, "timeout", "the engine did not answer in time")
    if error.kind is LegFailure.CONNECT:
        return RefusalError(502, "connect", "the engine cannot be reached")
    return RefusalError(502, "decode", "the engine ended the connection before it answered", code="engine_error")
