"""Takes requests in: reads what they ask, gives each its id, and sets it on its way."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import math
import os

from denvweb.core.errors import InvalidError
from fleets.router import openai
from fleets.router.access_log import AccessLog
from fleets.router.callers import Callers, RefusedError
from fleets.router.client import Client
from fleets.router.config import Config
from fleets.router.heads import Headers, RequestHead
from fleets.router.job import Job
from fleets.router.models import without
from fleets.router.openai import Ask
from fleets.router.policy import Pin, Stage
from fleets.router.services import Services
from fleets.router.telemetry import Telemetry, now
from fleets.router.tokens import Tokens
from fleets.router.tracing import Tracer
from fleets.router.upstream import Pool

_JSON = (b"content-type", b"application/json")


_NOT_HERE = ("model_not_found", "not_served")


class Pipeline:
    """Runs requests on a stage."""

    def __init__(self, config: Config, stage: Stage, pool: Pool, telemetry: Telemetry) -> None:
        self._stage = stage
        self._services = Services(config, stage, pool, telemetry, self._ended)
        self._session_header = config.session_header.lower().encode()
        self._id_prefix = b"req-" + os.urandom(8).hex().encode()
        self._serial = 0
        self._probes: dict[Job, asyncio.Future[None]] = {}
        self._log = AccessLog(config.access_log, stage=config.stage) if config.access_log else None
        self.tracer = Tracer(stage=config.stage) if config.tracing else None
        self.jobs: set[Job] = set()  # in flight
        self.idle = asyncio.Event()  # set when the last of them ended

    def begin(self, head: RequestHead, body: bytes, client: Client, pin: Pin | None = None, only: str | None = None) -> Job | None:
        """Set a generation request on its way; None when it was no valid one, and is answered."""
        start_s = now()
        request_id = head.request_id
        if not request_id:  # unique to this process and its like: random once, then counted
            self._serial += 1
            request_id = b"%b%08x" % (self._id_prefix, self._serial)
        callers = self._services.callers
        try:
            caller = callers.check(head) if pin is None and only is None else None
            ask = openai.parse(head.path, body)
            table, away = self._stage.table, None
            if table is not None and ask.model != table.model:
                away = self._away_for_model(ask, table.model)
            if ask.whole:
                away = self._away_for_whole(ask, head.path) | (away or frozenset())
            if caller is not None:
                callers.enter(caller)
        except InvalidError as error:
            refused = RefusedError(404 if error.code in _NOT_HERE else 400, error.code, error.detail)
            self._refuse(refused, head, client, request_id)
            return None
        except RefusedError as refused:
            self._refuse(refused, head, client, request_id)
            return None
        job = Job(self._services, head, client, ask, request_id, start_s)
        job.caller = caller
        if self.tracer is not None:
            job.leg_id = b"%b\r\ntraceparent: %b" % (request_id, self.tracer.begin(job))
        job.session_point = head.session[1] if head.session is not None else self._session_point(head)
        job.pin, job.only = pin, only
        if away is not None:
            job.avoid = away
        self.jobs.add(job)
        job.attempt(job.start if self._services.tokens.count is None else functools.partial(self._start_counted, job))
        return job

    def _start_counted(self, job: Job) -> None:
        """Start it when its prompt has been counted; at once where that would change nothing."""
        ask, stage, services = job.ask, self._stage, self._services
        counting = None
        if stage.apart and not ask.whole and ask.exact_tokens is None and len(ask.prompt) >= stage.conditional.local_prefill_below:
            counting = services.tokens.begin(ask.prompt)
        if counting is None:
            job.start()
            return
        job.series = services.nowhere(probe=job.made_here, only=job.only)  # it counts also when its client leaves meanwhile

        def counted(done: asyncio.Future[int]) -> None:
            if job.over:
                return
            if not done.cancelled() and done.exception() is None:
                job.counted(done.result())
            job.attempt(job.start)

        counting.add_done_callback(counted)

    def _away_for_model(self, ask: Ask, own: str) -> frozenset[str]:
        """What a request for an adapter, say, must keep away from; InvalidError when nobody has that model."""
        away = without(self._stage, ask.model)
        if away is None:
            raise InvalidError(f"the model `{ask.model}` does not exist here; this is `{own}`", code="model_not_found")
        ask.adapted = True
        return away

    def _away_for_whole(self, ask: Ask, path: str) -> frozenset[str]:
        """The same for a request that an aggregated pool alone can answer."""
        stage = self._stage
        if stage.apart and not stage.has_whole:
            cure = "ask /v1/chat/completions" if ask.responds else "ask a stage with `topology: { mode: aggregated }`"
            raise InvalidError(f"this stage has prefill and decode apart, and {path} needs a pool of both; {cure}", code="not_served")
        return stage.apart

    def mind_leases(self) -> None:
        """To be called every second: KV that prefill keeps must not be fetched after its lease."""
        self._services.leases.look(self.jobs)

    async def serve(self, head: RequestHead, body: bytes, client: Client, *, pin: Pin | None = None, only: str | None = None) -> Job | None:
        """The same, and wait for its end; cancelling it ends the request."""
        job = self.begin(head, body, client, pin, only)
        if job is None or job.over:
            return job
        self._probes[job] = done = asyncio.get_running_loop().create_future()
        try:
            await done
        finally:
            self._probes.pop(job, None)
            job.leave()
        return job

    def _refuse(self, refused: RefusedError, head: RequestHead, client: Client, request_id: bytes) -> None:
        """Answer a request that is not taken."""
        headers: Headers = [_JSON, (b"x-request-id", request_id)]
        if refused.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(refused.retry_after_s))))
        kind = "rate_limit_error" if refused.status == 429 else "invalid_request_error"
        client.respond(refused.status, openai.error_body(refused.detail, kind=kind, code=refused.code), headers)
        if self._log is not None:
            self._log.refused(status=refused.status, code=refused.code, path=head.path, peer=client.peer, request_id=request_id)

    @property
    def callers(self) -> Callers:
        """Who may ask."""
        return self._services.callers

    @property
    def lines_lost(self) -> int:
        """Lines of the access log that no disk took."""
        return self._log.lost if self._log is not None else 0

    def tokens_per_byte(self) -> float:
        """Of prompts, as engines have counted them lately."""
        return self._services.ratio.value

    def tokenizer_want(self) -> None:
        """To be called with each new table, and now and then: the tokenizer that it names, if any."""
        self._services.tokens.want(self._services.config.tokenizer or self._stage.tokenizer)

    @property
    def tokens(self) -> Tokens:
        """What counts prompts."""
        return self._services.tokens

    def flush(self) -> None:
        """Write what the access log holds."""
        if self._log is not None:
            self._log.flush()

    def reopen(self) -> None:
        """Open the access log anew."""
        if self._log is not None:
            self._log.reopen()

    def close(self) -> None:
        """Nothing comes any more: write what waits."""
        if self._log is not None:
            self._log.close()
        if self.tracer is not None:
            self.tracer.close()
        self._services.tokens.close()

    def _ended(self, job: Job) -> None:
        jobs = self.jobs
        jobs.discard(job)
        if job.caller is not None:
            usage = job.usage
            job.caller.meter.leave(usage.prompt + usage.completion if usage is not None else 0)
        if self._log is not None:
            self._log.request(job)
        if self.tracer is not None:
            self.tracer.end(job)
        if not jobs:
            self.idle.set()
        if job.made_here and (done := self._probes.get(job)) is not None and not done.done():
            done.set_result(None)

    def _session_point(self, head: RequestHead) -> float | None:
        """The hash of a request's session, in [0, 1)."""
        session = head.header(self._session_header)
        point = int.from_bytes(hashlib.blake2b(session, digest_size=7).digest(), "big") / 2.0**56 if session else None
        head.session = (session, point)
        return point
