"""Takes requests in: reads what they ask, gives each its id, and sets it on its way."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os

from denvweb.core.errors import InvalidError
from fleets.router import openai
from fleets.router.client import Client
from fleets.router.config import Config
from fleets.router.heads import Headers, RequestHead
from fleets.router.job import Job
from fleets.router.policy import Pin, Stage
from fleets.router.services import Services
from fleets.router.telemetry import Telemetry, now
from fleets.router.upstream import Pool

log = logging.getLogger("fleets.router.pipeline")

_JSON = (b"content-type", b"application/json")


class Pipeline:
    """Runs requests on a stage."""

    def __init__(self, config: Config, stage: Stage, pool: Pool, telemetry: Telemetry) -> None:
        self._stage = stage
        self._pool = pool
        self._services = Services(config, stage, pool, telemetry, self._ended)
        self._session_header = config.session_header.lower().encode()
        self._id_prefix = b"req-" + os.urandom(8).hex().encode()
        self._serial = 0
        self._probes: dict[Job, asyncio.Future[None]] = {}
        self.jobs: set[Job] = set()  # in flight
        self.idle = asyncio.Event()  # set when the last of them ended

    def begin(self, head: RequestHead, body: bytes, client: Client, pin: Pin | None = None) -> Job | None:
        """Set a generation request on its way; None when it was no valid one, and is answered."""
        start_s = now()
        request_id = head.request_id
        if not request_id:  # unique to this process and its like: random once, then counted
            self._serial += 1
            request_id = b"%b%08x" % (self._id_prefix, self._serial)
        try:
            ask = openai.parse(head.path, body)
            table = self._stage.table
            if table is not None and ask.model != table.model:
                raise InvalidError(f"the model `{ask.model}` does not exist here; this is `{table.model}`", code="model_not_found")
        except InvalidError as error:
            status = 404 if error.code == "model_not_found" else 400
            headers: Headers = [_JSON, (b"x-request-id", request_id)]
            client.respond(status, openai.error_body(error.detail, kind="invalid_request_error", code=error.code), headers)
            return None
        job = Job(self._services, head, client, ask, request_id, start_s)
        job.session_point = head.session[1] if head.session is not None else self._session_point(head)
        job.pin = pin
        self.jobs.add(job)
        try:
            job.start()
        except Exception as error:  # whatever it was, the client must not wait for ever
            log.exception("a request failed in the router itself")
            self._pool.broken(job, error)
        return job

    def mind_leases(self) -> None:
        """To be called every second: KV that prefill keeps must not be fetched after its lease."""
        self._services.leases.look(self.jobs)

    async def serve(self, head: RequestHead, body: bytes, client: Client, *, pin: Pin | None = None) -> Job | None:
        """The same, and wait for its end; cancelling it ends the request."""
        job = self.begin(head, body, client, pin)
        if job is None or job.over:
            return job
        self._probes[job] = done = asyncio.get_running_loop().create_future()
        try:
            await done
        finally:
            self._probes.pop(job, None)
            job.leave()
        return job

    def _ended(self, job: Job) -> None:
        jobs = self.jobs
        jobs.discard(job)
        if not jobs:
            self.idle.set()
        if job.pin is not None and (done := self._probes.get(job)) is not None and not done.done():
            done.set_result(None)

    def _session_point(self, head: RequestHead) -> float | None:
        """The hash of a request's session, in [0, 1)."""
        session = head.header(self._session_header)
        point = int.from_bytes(hashlib.blake2b(session, digest_size=7).digest(), "big") / 2.0**56 if session else None
        head.session = (session, point)
        return point
