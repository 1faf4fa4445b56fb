"""The simulated engine put together: HTTP routes, scheduler, KV pool, side channel, gang."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import orjson

from denvweb.core.errors import InvalidError, UnavailableError
from fleets.domain.hardware import GPUS
from fleets.domain.timing import kv_transfer_s, memory_fit
from fleets.domain.types import Faults, Role
from fleets.engines.sim.answer import Answer, StreamAnswer, WholeAnswer
from fleets.engines.sim.config import SGLANG, Config
from fleets.engines.sim.events import KvEvents
from fleets.engines.sim.faults import FaultBox
from fleets.engines.sim.gang import Gang
from fleets.engines.sim.http import Connection, Reply, Request
from fleets.engines.sim.metrics import Metrics
from fleets.engines.sim.openai import Generation, RequestError, read_generation
from fleets.engines.sim.pool import KvPool
from fleets.engines.sim.scheduler import Scheduler
from fleets.engines.sim.sequence import Phase, Remote, Sequence
from fleets.engines.sim.tokens import count
from fleets.engines.sim.transfer import Fetcher, LeaseBook, SideChannel, remote_from

log = logging.getLogger("denv.engine.sim")

VERSION = "0.33.0+denv.sim"
_GENERATIONS = {"/v1/completions": False, "/v1/chat/completions": True}  # whether it is a chat
EXIT_CHOKED = 1
EXIT_GANG_BROKEN = 3
_PERMISSION = {"id": "modelperm-sim", "object": "model_permission", "allow_sampling": True, "organization": "*", "is_blocking": False}
_HALF_A_HANDOVER = "the handover lacks where to fetch the KV"
_LAST_WORDS_S = 0.05  # for an error to reach its client
MAX_BLOCKS = 12_288  # of 64 tokens: 786,432 tokens, 6 MB of KV bytes


class Engine:
    """One replica's rank 0."""

    def __init__(self, config: Config, *, on_exit: Callable[[int, str], None]) -> None:
        self.config = config
        self.engine_id = config.engine_id or str(uuid.uuid4())
        self.faults = FaultBox(config.faults)
        self.metrics = Metrics()
        self.pool = KvPool(
            blocks=config.kv_blocks or modelled_blocks(config),
            block_tokens=config.block_tokens,
            tensor_parallel=config.tensor_parallel,
            caching=config.prefix_caching,
        )
        self.context_tokens = min(config.shape.context_tokens, self.pool.blocks * config.block_tokens)
        self.leases = LeaseBook(self.pool, self.metrics, config.lease_s, self._blocks_freed)
        self.scheduler = Scheduler(
            config, self.pool, self.faults, self.metrics, clock=time.monotonic, on_fetch=self._on_fetch, on_keep=self._on_keep
        )
        self.fetcher = Fetcher(
            self.pool,
            self.faults,
            self.metrics,
            clock=time.monotonic,
            modelled_s=self._transfer_s,
            on_done=self.scheduler.kv_arrived,
            on_failed=self.scheduler.kv_failed,
        )
        self.gang = Gang(
            replica=config.replica,
            ranks=config.ranks,
            heartbeat_s=config.gang_heartbeat_s,
            on_complete=self._look_if_ready,
            on_broken=self._gang_broken,
        )
        self.loaded = config.faults.start_delay_s <= 0
        self.draining = False
        self._on_exit = on_exit
        self._events: KvEvents | None = None
        self._side = SideChannel(self.engine_id, self.pool, self.leases, self.faults, self.metrics)
        self._server: asyncio.AbstractServer | None = None
        self._created = int(time.time())
        self._lease_names: dict[Sequence, str] = {}
        self._ready = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Weights are there, and so are all ranks."""
        return self.loaded and self.gang.complete

    async def start(self) -> None:
        """Listen on all three ports."""
        config, loop = self.config, asyncio.get_running_loop()
        if config.events_port:
            self._tell_events()
        self._server = await loop.create_server(lambda: Connection(self.handle), config.host, config.port)
        await self._side.start(config.host, config.port + 1)
        await self.gang.start(config.host, config.port + 2)
        if not self.loaded:
            loop.call_later(config.faults.start_delay_s, self._weights_loaded)
        self._look_if_ready()

    def _tell_events(self) -> None:
        """Publish what the cache holds; without the library the engine serves all the same."""
        config = self.config
        try:
            self._events = KvEvents(config.host, config.events_port, config.replay_port, block_tokens=config.block_tokens)
        except UnavailableError as error:
            log.warning("%s", error.detail)
        self.pool.told = self._events

    async def until_ready(self) -> None:
        """Return once it can serve."""
        await self._ready.wait()

    def close(self) -> None:
        """Listen no more; connections that stand are left to their clients."""
        if self._server is not None:
            self._server.close()
        self._side.close()
        if self._events is not None:
            self._events.close()
        self.gang.close()

    async def drain(self, deadline_s: float) -> None:
        """Take nothing new, finish what is here, wait for leases; give up at the deadline."""
        self.draining = True
        end = time.monotonic() + deadline_s
        while not (self.scheduler.idle and not len(self.leases)) and time.monotonic() < end:
            await asyncio.sleep(0.05)

    # ---- HTTP ----

    def handle(self, request: Request, reply: Reply) -> None:
        """Answer one request."""
        route = (request.method, request.path)
        try:
            if request.path in _GENERATIONS:
                if request.method == "POST":
                    self._generate(request, reply, chat=_GENERATIONS[request.path])
                else:
                    reply.send(405, b'{"detail":"Method Not Allowed"}', allow=b"POST")
            elif route == ("GET", "/health"):
                reply.send(200 if self.ready else 503, b"" if self.ready else self._not_ready())
            elif route == ("GET", "/metrics"):
                reply.send(200, self._metrics_page(), b"text/plain; version=1.0.0; charset=utf-8")
            elif route == ("POST", "/sim/faults"):
                self._set_faults(request)
                reply.send(200, orjson.dumps(msgspec.to_builtins(self.faults.now)))
            elif route == ("POST", "/reset_prefix_cache"):
                reply.send(200 if self.pool.clear() else 409, b"")
            elif (document := self._document(request.path)) is None:
                reply.send(404, b'{"detail":"Not Found"}')
            elif request.method != "GET":
                reply.send(405, b'{"detail":"Method Not Allowed"}', allow=b"GET")
            else:
                reply.send(200, orjson.dumps(document))
        except RequestError as error:
            reply.send(error.status, error.body)

    def _document(self, path: str) -> dict[str, Any] | None:
        """What a page says; None when there is none."""
        if path == "/v1/models":
            return {"object": "list", "data": [self._model_card()]}
        if path == "/version":
            return {"version": VERSION, "engine_id": self.engine_id, "simulated": True}
        if path == "/load":
            return {"server_load": len(self.scheduler.running) + len(self.scheduler.prefilling) + len(self.scheduler.waiting)}
        if path == "/sim/faults":
            faults: dict[str, Any] = msgspec.to_builtins(self.faults.now)
            return faults
        return None

    def _generate(self, request: Request, reply: Reply, *, chat: bool) -> None:
        if not self.ready or self.draining:
            raise RequestError(503, "the engine takes no requests now", "ServiceUnavailableError")
        fault = self.faults.request_arrives()
        if fault == "hang":
            return
        if fault == "error":
            raise RequestError(500, "Internal server error: fault", "InternalServerError")
        want = read_generation(request.body, chat=chat, model=self.config.model, context_tokens=self.context_tokens)
        name = request.header(b"x-request-id") or uuid.uuid4().hex[:16]
        answer_id = f"{'chatcmpl' if chat else 'cmpl'}-{name}"
        kind = StreamAnswer if want.stream else WholeAnswer
        answer = kind(want, reply, answer_id=answer_id, model=self.config.model, created=int(time.time()))
        self._submit(answer, want)

    def _submit(self, answer: Answer, want: Generation) -> None:
        reply, answer.kv_params = answer.reply, self._kv_params
        reply.on_gone = lambda: self._gone(answer)
        answer.sequences = [self._sequence(answer, want, index) for index in range(answer.open)]
        if (fatal := self._fatal(answer.sequences[0], want)) is not None:
            self._choke(answer, fatal)
            return
        self.metrics.request_n.observe(want.choices)
        if want.stream:
            reply.start_stream()  # as vLLM: before the KV is on board
        for sequence in answer.sequences:
            if sequence.remote is not None:
                self.fetcher.hold(sequence, sequence.remote)
            self.scheduler.add(sequence)

    def _fatal(self, sequence: Sequence, want: Generation) -> str | None:
        """What vLLM's core dies of in a handover; no router may ever send it."""
        if (want.kv or {}).get("do_remote_prefill") is not True:
            return None
        if sequence.remote is None:
            return _HALF_A_HANDOVER
        if len(sequence.remote.blocks) < -(-sequence.prompt_tokens // self.config.block_tokens):
            return "the handover has too few blocks for its prompt"
        return None

    def _choke(self, answer: Answer, why: str) -> None:
        """As vLLM: half a handover hangs and kills the engine when its client leaves, too few blocks kill it at once."""
        if why == _HALF_A_HANDOVER:
            if answer.want.stream:
                answer.reply.start_stream()
            answer.reply.on_gone = lambda: self._on_exit(EXIT_CHOKED, why)
            return
        answer.failed(answer.sequences[0], why)
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._on_exit, EXIT_CHOKED, why)

    def _sequence(self, answer: Answer, want: Generation, index: int) -> Sequence:
        packed = want.prompts[index // want.choices]
        kv = want.kv if index == 0 and want.kv else {}  # a handover is for one sequence
        room = self.context_tokens - count(packed)
        sequence = Sequence(
            sink=answer,
            packed=packed,
            block_tokens=self.config.block_tokens,
            max_tokens=room if want.max_tokens is None else min(room, want.max_tokens),
            limited=want.max_tokens is not None,
            min_tokens=want.min_tokens,
            ignore_eos=want.ignore_eos,
            choice=index,
            keep_kv=kv.get("do_remote_decode") is True,
            remote=remote_from(kv) if kv.get("do_remote_prefill") is True else None,
        )
        if self.config.protocol == SGLANG and self.config.role is not Role.AGGREGATED:
            self._meet(sequence, want, index)
        elif sequence.keep_kv:
            middle = "" if want.chat else "-0"
            self._lease_names[sequence] = f"{answer.id}{middle}-{uuid.uuid4().hex[:8]}"
        return sequence

    def _meet(self, sequence: Sequence, want: Generation, index: int) -> None:
        """SGLang: prefill says one token and keeps the KV for its room, decode waits for it there, and neither works without one."""
        if not want.rooms:
            raise RequestError(400, "Disaggregated request received without bootstrap room id")
        host, port, number = want.rooms[index // want.choices]
        name = f"room-{number + index % want.choices}"
        if self.config.role is Role.PREFILL:
            sequence.max_tokens, sequence.min_tokens, sequence.keep_kv = 1, 0, True
            self._lease_names[sequence] = name
        else:
            sequence.remote = Remote(host, port, "", name, blocks=(), tokens=0, tensor_parallel=0, cached_tokens=0)

    def _gone(self, answer: Answer) -> None:
        for sequence in answer.sequences:
            self.fetcher.drop(sequence)
            self.scheduler.abort(sequence)
            self._lease_names.pop(sequence, None)
        answer.forget()

    # ---- the KV's journey ----

    def _on_fetch(self, sequence: Sequence) -> None:
        self.fetcher.placed(sequence)

    def _on_keep(self, sequence: Sequence) -> None:
        self.leases.keep(self._lease_names.pop(sequence), sequence.blocks)

    def _blocks_freed(self) -> None:
        self.scheduler.wake()

    def _kv_params(self, sequence: Sequence) -> dict[str, Any] | None:
        """What a router passes on to decode, word for word as vLLM's NixlConnector says it."""
        if not sequence.keep_kv or self.config.protocol == SGLANG:
            return None
        blocks = sequence.blocks[: -(-sequence.prompt_tokens // self.config.block_tokens)]
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [blocks],
            "remote_engine_id": self.engine_id,
            "remote_request_id": self._lease_names[sequence],
            "remote_host": self.config.host,
            "remote_port": self.config.port + 1,
            "tp_size": self.config.tensor_parallel,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": sequence.prompt_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": sequence.cached,
        }

    def _transfer_s(self, tokens: int) -> float:
        """How long the true bytes of so many tokens travel."""
        config = self.config
        return kv_transfer_s(tokens * config.shape.kv_bytes_per_token, GPUS[config.gpu_kind], config.same_domain) / config.speed

    # ---- small things ----

    def _weights_loaded(self) -> None:
        self.loaded = True
        self._look_if_ready()

    def _gang_broken(self, why: str) -> None:
        """A rank that ends while this one drains was told to end too: what is running is still finished."""
        if not self.draining:
            self._on_exit(EXIT_GANG_BROKEN, why)

    def _look_if_ready(self) -> None:
        if self.ready:
            self._ready.set()

    def _not_ready(self) -> bytes:
        waiting = "weights are loading" if not self.loaded else f"{self.gang.missing} of {self.config.ranks} ranks are missing"
        return orjson.dumps({"status": "starting", "detail": waiting})

    def _set_faults(self, request: Request) -> None:
        try:
            values = msgspec.to_builtins(self.faults.now) | orjson.loads(request.body or b"{}")
            self.faults.replace(msgspec.convert(values, type=Faults, strict=False))
        except (orjson.JSONDecodeError, msgspec.ValidationError, TypeError) as error:
            raise RequestError(400, f"these are no faults: {error}") from error

    def _metrics_page(self) -> bytes:
        scheduler = self.scheduler
        remote = sum(1 for sequence in scheduler.waiting if sequence.remote is not None and sequence.phase is Phase.WAITING)
        gauges = {
            "running": len(scheduler.running) + len(scheduler.prefilling),
            "waiting": len(scheduler.waiting) - remote,
            "deferred": remote + scheduler.fetching,
            "fetching": scheduler.fetching,
            "kv_use": self.pool.use_ratio,
        }
        info = {
            "engine": "0",
            "block_size": str(self.config.block_tokens),
            "num_gpu_blocks": str(self.pool.blocks),
            "enable_prefix_caching": str(self.config.prefix_caching),
        }
        return self.metrics.render(self.config.model, gauges, info)

    def _model_card(self) -> dict[str, Any]:
        return {
            "id": self.config.model,
            "object": "model",
            "created": self._created,
            "owned_by": "sglang" if self.config.protocol == SGLANG else "denv",  # by this routers know which engine it is
            "root": self.config.model,
            "parent": None,
            "max_model_len": self.context_tokens,
            "permission": [_PERMISSION],
        }


def modelled_blocks(config: Config) -> int:
    """Blocks that the GPUs' memory would hold, up to what a laptop should give one engine; InvalidError without room for one."""
    fit = memory_fit(config.shape, GPUS[config.gpu_kind], config.gpus, role=config.role)
    if fit.kv_tokens < config.block_tokens:
        raise InvalidError(
            f"out of GPU memory: weights take {fit.weights_bytes / 1e9:.0f} GB of {fit.usable_bytes / 1e9:.0f} GB on each GPU, "
            f"and nothing is left for KV; {fit.gpus_needed} GPUs would do",
            code="weights-do-not-fit",
        )
    return min(MAX_BLOCKS, fit.kv_tokens // config.block_tokens)
