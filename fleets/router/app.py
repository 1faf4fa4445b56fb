"""The router as a whole: what each path answers, and the loops that keep it up to date."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import orjson

from denvweb.core.backoff import Backoff
from denvweb.core.errors import DenvError, InvalidError
from fleets.domain.protocol import ProbeResult, RouterReport, RouterTable
from fleets.router.admission import Gate
from fleets.router.board import EVERY_S, Board, Sharing
from fleets.router.callers import RefusedError
from fleets.router.client import ClientConnection
from fleets.router.config import Config
from fleets.router.control import Control
from fleets.router.families import families
from fleets.router.gauges import Gauges
from fleets.router.heads import Headers, RequestHead, RequestHeads
from fleets.router.job import Job
from fleets.router.kv_listener import KvListener
from fleets.router.models import merged
from fleets.router.openai import GENERATE_PATHS, NOT_STORED, RESPONSES_PATH, error_body
from fleets.router.pipeline import Pipeline
from fleets.router.policy import Stage
from fleets.router.prefix import PrefixIndex
from fleets.router.probe import Prober
from fleets.router.prometheus_native import NATIVE_TYPE, native_page, wanted
from fleets.router.report import Reporter
from fleets.router.synthetic import Tester
from fleets.router.table import TableKeeper
from fleets.router.telemetry import Telemetry
from fleets.router.tls import certificate_load, tls_context
from fleets.router.upstream import Pool
from metrics.domain.exposition import TEXT_TYPE, Family, text_page

log = logging.getLogger("fleets.router")

CLIENT_IDLE_S = 75.0
BACKLOG = 4096  # connections that wait to be taken
LISTENERS = 8
LAST_TRIES = 3  # for the report at the end
_JSON: Headers = [(b"content-type", b"application/json")]


class App:
    """One router process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.draining = False
        self.max_body_bytes = config.max_body_bytes
        self.max_header_bytes = config.max_header_bytes
        self.port = config.port
        self.last_tries = LAST_TRIES
        self.failures: dict[str, int] = {}  # of loops and requests that ended in a way nobody foresaw
        self._started_at = int(time.time())
        self._clients: set[ClientConnection] = set()
        self.heads = RequestHeads()
        self._tls = tls_context(config)
        self._loops: list[asyncio.Task[None]] = []
        self._servers: list[asyncio.Server] = []
        self.pool = Pool(connect_deadline_s=config.connect_deadline_s, unforeseen=self._unforeseen)
        self.outbox = self.pool.outbox
        self.telemetry = Telemetry(config.stage)
        self.stage = Stage(
            clock_s=time.monotonic,
            make_gate=lambda room: Gate(room, limit=config.queue_limit, deadline_s=config.queue_deadline_s),
            prefill_inflight=max(1, config.prefill_inflight // config.peers),
            eject_after=config.eject_after,
            index=PrefixIndex(config.prefix_blocks),
        )
        self.pipeline = Pipeline(config, self.stage, self.pool, self.telemetry)
        self.table = TableKeeper(stage=config.stage, path=config.table_path, apply=self.apply)
        self.control = Control(config)
        self.reporter = Reporter(self.control, self._report)
        self.prober = Prober(self.stage, self.pipeline, self.reporter.probed)
        self.tester = Tester(self.stage, self.pipeline, self.telemetry, peers=max(1, config.peers), sleep=asyncio.sleep)
        self.gauges = Gauges(
            self.stage, self.pool, self.telemetry, hung_after_s=config.hung_after_s, token_s=config.prefill_token_deadline_s
        )
        board = Board(config.peer_board, peers=config.peers, own=config.peer_index) if config.peer_board else None
        self.kv_events = KvListener(self.stage, self.pipeline.tokens_per_byte)
        self.sharing = Sharing(board, self.stage) if board else None

    def apply(self, table: RouterTable) -> None:
        """Put a table in force everywhere."""
        self.stage.swap(table)
        if self.pipeline.callers.set(table.keys, required=table.keys_required):
            self.heads.forget()
        self.telemetry.set_alarms(table.alarms)
        self.prober.look()
        if self._loops:
            self.pipeline.tokenizer_want()
            self.kv_events.look()

    # -- Handler --

    def opened(self, client: ClientConnection) -> None:
        self._clients.add(client)
        if len(self._clients) > self.config.max_connections:
            client.turn_away()

    def closed(self, client: ClientConnection) -> None:
        self._clients.discard(client)

    def handle(self, head: RequestHead, body: bytes, client: ClientConnection) -> Job | None:
        if head.path in GENERATE_PATHS and head.method == b"POST":
            return self.pipeline.begin(head, body, client)
        try:
            if head.path.startswith("/v1/"):
                self.pipeline.callers.check(head)
        except RefusedError as refused:
            client.respond(refused.status, error_body(refused.detail, kind="invalid_request_error", code=refused.code), _JSON)
            return None
        client.respond(*self._page(head.path, head.method, head.header(b"accept")))
        return None

    def _unforeseen(self, error: BaseException) -> None:
        self.failures["request"] = self.failures.get("request", 0) + 1

    def _page(self, path: str, method: bytes, accept: bytes) -> tuple[int, bytes, Headers]:
        if path.startswith(f"{RESPONSES_PATH}/"):
            return 404, error_body(NOT_STORED, kind="invalid_request_error", code="not_stored"), _JSON
        if path in GENERATE_PATHS or method not in (b"GET", b"HEAD"):
            status = 405 if path in GENERATE_PATHS or path in ("/health", "/ready", "/metrics", "/v1/models") else 404
            return (
                status,
                error_body(f"{method.decode('latin-1')} {path} is not served", kind="invalid_request_error", code="not_served"),
                _JSON,
            )
        if path == "/health":
            return 200, b'{"status":"ok"}', _JSON
        if path == "/ready":
            ready, why = self.ready
            return (200 if ready else 503), orjson.dumps({"ready": ready, "detail": why}), _JSON
        if path == "/metrics":
            native = wanted(accept)
            page = (native_page if native else text_page)(self._families())
            return 200, page, [(b"content-type", NATIVE_TYPE if native else TEXT_TYPE.encode())]
        if path == "/v1/models":
            return 200, orjson.dumps({"object": "list", "data": merged(self.stage, created_at=self._started_at)}), _JSON
        if path.startswith("/v1/models/"):
            name = unquote(path.removeprefix("/v1/models/"))
            if card := next((card for card in merged(self.stage, created_at=self._started_at) if card["id"] == name), None):
                return 200, orjson.dumps(card), _JSON
        return 404, error_body(f"{path} is not served", kind="invalid_request_error", code="not_found"), _JSON

    @property
    def ready(self) -> tuple[bool, str]:
        """Whether clients should be sent here, and why not."""
        if self.draining:
            return False, "draining"
        if self.stage.table is None:
            return False, "no table yet"
        if not any(unit.spec.routable and self.stage.weights.get(unit.spec.release) for unit in self.stage.units.values()):
            return False, "no routable unit"
        return True, ""

    def _families(self) -> list[Family]:
        extra = {
            "table_generation": float(self.table.generation),
            "reports_waiting": float(self.reporter.waiting),
            "prefix_blocks": float(len(self.stage.index)),
            "kv_event_batches": float(self.kv_events.batches),
            "kv_events_lost": float(self.kv_events.lost),
            "client_connections": float(len(self._clients)),
            "access_log_lines_lost": float(self.pipeline.lines_lost),
            "unforeseen_failures": float(sum(self.failures.values())),
            **self._tokenizer_figures(),
        }
        return families(self.telemetry.all(), self.stage, extra, self.pipeline.callers.refused)

    def _tokenizer_figures(self) -> dict[str, float]:
        """Where one is named: whether it counts, and how often it did not."""
        tokens = self.pipeline.tokens
        if not tokens.name:
            return {}
        figures = {
            "tokenizer_loaded": tokens.count is not None,
            "tokenizer_failures": tokens.failures,
            "prompts_estimated": tokens.estimated,
        }
        return {name: float(value) for name, value in figures.items()}

    def _report(self, probes: tuple[ProbeResult, ...]) -> RouterReport:
        return RouterReport(
            router=self.config.name or self.config.label,
            boot="",
            seq=0,
            stage=self.config.stage,
            url=self.url,
            table_generation=self.table.generation,
            at=time.time(),
            series=tuple(self.telemetry.take()),
            gauges=tuple(unit.gauge() for unit in self.stage.units.values()),
            probes=probes,
            inflight=dict(self.stage.inflight),
        )

    @property
    def url(self) -> str:
        """Where clients reach this router."""
        scheme = "https" if self._tls is not None else "http"
        return f"{scheme}://{self.config.advertise or self.config.host}:{self.port}"

    # -- life --

    async def start(self) -> None:
        """Listen, with the last table at once, and start the loops."""
        self.table.load()
        await self._listen()
        steps: dict[str, tuple[Callable[[], Awaitable[None]], float]] = {
            "table": (self._follow, 0.0),
            "report": (self._tell, self.config.report_every_s),
            "gauges": (self._look, self.config.gauge_every_s),
            "clients": (self._sweep, 10.0),
            "synthetic": (self.tester.step, 0.0),
            "access-log": (self._write_log, 1.0),
        }
        if self.sharing is not None:
            steps["sharing"] = (self._share, EVERY_S)
        self._loops = [asyncio.create_task(self._forever(name, step, every_s), name=name) for name, (step, every_s) in steps.items()]
        log.info("router %s of %s listens on %s", self.config.label, self.config.stage, self.url)

    async def _listen(self) -> None:
        """Listen on several descriptors of one socket.

        The loop takes one connection from each of them in a turn. With one alone, the last of a burst of clients would wait for as
        many turns as there are before it, and each turn serves all the streams that run.
        """
        loop = asyncio.get_running_loop()

        def made() -> ClientConnection:
            return ClientConnection(self)

        first = await loop.create_server(
            made, self.config.host, self.config.port, reuse_port=self.config.reuse_port or None, backlog=BACKLOG, ssl=self._tls
        )
        self._servers = [first]
        self.port = first.sockets[0].getsockname()[1]
        for held in first.sockets:
            for _ in range(LISTENERS - 1):
                again = socket.socket(fileno=os.dup(held.fileno()))
                again.setblocking(False)
                self._servers.append(await loop.create_server(made, sock=again, backlog=BACKLOG, ssl=self._tls))

    def reload(self) -> None:
        """Read the certificate anew, and open the access log anew. A certificate that cannot be read leaves the one in use."""
        self.pipeline.reopen()
        if self._tls is None:
            return
        try:
            certificate_load(self._tls, self.config)
        except InvalidError as error:
            log.error("the certificate in use stays: %s", error.detail)

    async def stop(self) -> None:
        """Take nothing new, finish what is in flight up to the deadline, report, and end."""
        self.draining = True
        for server in self._servers:
            server.close()
        for client in [client for client in self._clients if client.idle]:
            client.close()
        await self.tester.close()
        await self._drain()
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self.prober.close()
        await self.gauges.close()
        await self.kv_events.close()
        self.reporter.cut(last=True)
        await self._send_last()
        for client in list(self._clients):
            client.close()
        self.pool.close()
        self.pipeline.close()
        await self.control.close()

    async def _drain(self) -> None:
        """Wait for what is in flight, up to the deadline; then end it."""
        jobs = self.pipeline.jobs
        if not jobs:
            return
        log.info("draining %d requests", len(jobs))
        try:
            async with asyncio.timeout(self.config.drain_deadline_s):
                while jobs:
                    self.pipeline.idle.clear()
                    await self.pipeline.idle.wait()
        except TimeoutError:
            log.warning("%d requests did not end in time", len(jobs))
        for job in list(jobs):
            job.run_out()

    async def _send_last(self) -> None:
        for left in reversed(range(self.last_tries)):
            try:
                await self.reporter.send()
            except DenvError as error:
                log.warning("the last report was not taken: %s", error.detail)
                if left:
                    await asyncio.sleep(0.1)
            else:
                return

    async def _forever(self, name: str, step: Callable[[], Awaitable[None]], every_s: float) -> None:
        backoff, failed = Backoff(first_s=0.5, cap_s=5.0), 0
        while True:
            try:
                await step()
            except DenvError as error:
                failed += 1
                if failed in (1, 10, 100) or failed % 1000 == 0:
                    log.warning("%s: %s", name, error.detail)
                await asyncio.sleep(backoff.delay_s(failed, random.random))
            except Exception:
                failed += 1
                self.failures[name] = self.failures.get(name, 0) + 1
                log.exception("%s failed; it goes on", name)
                await asyncio.sleep(backoff.delay_s(failed, random.random))
            else:
                failed = 0
                await asyncio.sleep(every_s)

    async def _follow(self) -> None:
        before = self.table.generation
        if not await self.table.poll(self.control) and self.table.generation == before:
            await asyncio.sleep(0.5)  # nothing new, or an older one: never ask without a breath

    async def _tell(self) -> None:
        self.reporter.cut()
        await self.reporter.send()

    async def _look(self) -> None:
        self.pipeline.mind_leases()
        self.pipeline.tokenizer_want()
        self.kv_events.look()
        self.gauges.poll()

    async def _write_log(self) -> None:
        self.pipeline.flush()

    async def _share(self) -> None:
        if self.sharing is not None:
            self.sharing.exchange()

    async def _sweep(self) -> None:
        """Connections that ask nothing for long are ended, whether they sent half a head or none."""
        limit_s = asyncio.get_running_loop().time() - CLIENT_IDLE_S
        for client in [client for client in self._clients if client.idle and client.since_s < limit_s]:
            client.close()
