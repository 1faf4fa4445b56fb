"""The router's side: where each request goes, by the router's own policy, and what becomes of it when a replica dies."""

from __future__ import annotations

from collections.abc import Sequence

from fleets.domain import routing
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.routing import Reason
from fleets.domain.simulator.replica import Job, Replica
from fleets.domain.simulator.tally import Tally
from fleets.domain.simulator.types import Arrival, Limits, Phase, RouterShape
from fleets.domain.types import Role


class Unit:
    """One serving unit and its prefill queue, as the router sees it."""

    __slots__ = ("all_decodes", "all_prefills", "decodes", "inflight", "overtaken", "prefill_inflight", "prefills", "used_seq", "waiting")

    def __init__(self, prefills: Sequence[Replica], decodes: Sequence[Replica]) -> None:
        self.all_prefills, self.all_decodes = list(prefills), list(decodes)
        self.prefills, self.decodes = self.all_prefills, self.all_decodes  # those that are up
        self.waiting: list[tuple[int, Job, float]] = []  # tokens to compute, and since when; in order of arrival
        self.overtaken = 0  # how often the first of them was passed over
        self.prefill_inflight = self.inflight = self.used_seq = 0

    @property
    def load(self) -> float:
        """Requests for each replica that decodes."""
        return self.inflight / (len(self.decodes) or 1)

    def look(self) -> None:
        """Notice which replicas may be sent to."""
        self.prefills = [replica for replica in self.all_prefills if replica.up and not replica.leaving]
        self.decodes = [replica for replica in self.all_decodes if replica.up and not replica.leaving]

    def replica(self, role: Role, ordinal: int) -> Replica | None:
        """One of its replicas; None when there is no such one."""
        replicas = self.all_prefills if role is Role.PREFILL else self.all_decodes
        return replicas[ordinal] if ordinal < len(replicas) and replicas[ordinal].role is role else None


class Stage:
    """Units, requests in flight, and what the finished ones saw."""

    def __init__(self, conditional: ConditionalPolicy, router: RouterShape, limits: Limits) -> None:
        self.units: list[Unit] = []
        self._usable: list[Unit] = []
        self.conditional, self._router = conditional, router
        self._ttft_limit_s = limits.ttft_s if limits.ttft_s is not None else float("inf")
        self._itl_limit_s = limits.itl_s if limits.itl_s is not None else float("inf")
        self._seq = 0
        self.arrived = self.completed = self.rejected = self.failed = self.good = 0
        self.input_tokens = self.output_tokens = self.cached_tokens = self.moved_tokens = 0
        self.last_s = 0.0
        self.ttft, self.tpot, self.e2e = Tally(), Tally(), Tally()
        self.phases = dict.fromkeys(Phase, 0.0)
        self.reasons: dict[Reason, int] = {}

    # ---- the way in ----

    def arrive(self, now: float, arrival: Arrival) -> None:
        """A request comes."""
        self.arrived += 1
        self.input_tokens += arrival.input_tokens
        self._route(now, Job(arrival))

    def _route(self, now: float, job: Job) -> None:
        unit = self._unit(job.arrival)
        decode = self._decode(unit, job.arrival) if unit is not None else None
        if unit is None or decode is None:
            self.failed += 1
            return
        self._seq += 1
        unit.used_seq = decode.used_seq = self._seq
        unit.inflight += 1
        job.unit, job.decode = unit, decode
        if decode.role is Role.AGGREGATED:
            self._send(now, job, Reason.AGGREGATED)
            return
        held = decode.cache.held_tokens(job.arrival) if job.arrival.blocks else job.arrival.shared_tokens
        decision = routing.decide(
            self.conditional,
            prompt_tokens=job.prompt,
            held_tokens=held,
            prefill_queue=len(unit.waiting),
            decode_kv_use=decode.kv_use,
            has_prefill=bool(unit.prefills),
        )
        if not decision.remote:
            self._send(now, job, decision.reason)
        elif not unit.waiting and self._has_place(unit):
            self._prefill(now, job)
        elif len(unit.waiting) < self._router.queue_limit:
            size = max(0, job.prompt - max(self._held(unit.prefills, job.arrival), default=0))
            unit.waiting.append((size, job, now))
        else:
            unit.inflight -= 1
            self.rejected += 1

    def notice(self) -> None:
        """A replica died or is back."""
        for unit in self.units:
            unit.look()
        self._usable = [unit for unit in self.units if unit.decodes]

    def _unit(self, arrival: Arrival) -> Unit | None:
        units = self._usable
        if len(units) < 2:
            return units[0] if units else None
        if not arrival.blocks:
            return routing.pick_unit(units, [arrival.shared_tokens] * len(units))
        best = [max([replica.cache.held_tokens(arrival) for replica in unit.decodes + unit.prefills]) for unit in units]
        return routing.pick_unit(units, best)

    def _decode(self, unit: Unit, arrival: Arrival) -> Replica | None:
        decodes = unit.decodes
        return decodes[0] if len(decodes) == 1 else routing.pick_decode(decodes, self._held(decodes, arrival))

    @staticmethod
    def _held(replicas: Sequence[Replica], arrival: Arrival) -> list[int]:
        if not arrival.blocks:
            return [arrival.shared_tokens] * len(replicas)
        return [replica.cache.held_tokens(arrival) for replica in replicas]

    def _send(self, now: float, job: Job, reason: Reason) -> None:
        """To decode, which prefills it too when it is not remote."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        decode = job.decode
        if not job.remote:
            job.owed = max(0, job.prompt - self._held((decode,), job.arrival)[0])
            decode.tokens += job.owed
        decode.running += 1
        decode.add(now, job)

    # ---- prefill ----

    def _has_place(self, unit: Unit) -> bool:
        if unit.prefill_inflight >= self._router.prefill_inflight * (len(unit.prefills) or 1):
            return False
        return not unit.prefills or any(replica.tokens < self._router.prefill_tokens for replica in unit.prefills)

    def _prefill(self, now: float, job: Job) -> None:
        """A prefill leg; without a usable replica decode does it."""
        replicas = job.unit.prefills
        held = self._held(replicas, job.arrival)
        picked = routing.pick_prefill(replicas, held, job.prompt)
        if picked is None:
            job.remote = job.hands_over = False
            self._send(now, job, Reason.PREFILL_FAILED_LOCAL)
            return
        self._seq += 1
        picked.used_seq = self._seq
        job.remote = job.hands_over = True
        job.prefill, job.owed = picked, max(0, job.prompt - held[replicas.index(picked)])
        picked.running += 1
        picked.tokens += job.owed
        job.unit.prefill_inflight += 1
        picked.add(now, job)

    def _leave_prefill(self, now: float, job: Job) -> None:
        job.prefill.running -= 1
        job.prefill.tokens -= job.owed
        job.owed = 0
        unit = job.unit
        unit.prefill_inflight -= 1
        while unit.waiting and self._has_place(unit):
            index = routing.next_in_line([size for size, _, _ in unit.waiting], unit.overtaken)
            unit.overtaken = unit.overtaken + 1 if index else 0
            _, waiting, since_s = unit.waiting.pop(index)
            if now - since_s > self._router.queue_deadline_s:
                unit.inflight -= 1
                self.rejected += 1
            else:
                self._prefill(now, waiting)

    # ---- what replicas say ----

    def done(self, now: float, job: Job) -> None:
        """A prefill that hands over, or the end of an answer."""
        if job.hands_over:
            job.hands_over = False
            job.prefilled_s = now
            job.prefill_boot = job.boot
            self._leave_prefill(now, job)
            if job.decode.up:
                self._send(now, job, Reason.REMOTE)
            else:
                self.lost(now, job)
            return
        if job.unit is None:  # it was there before the simulation began, and is in nobody's figures
            return
        job.unit.inflight -= 1
        job.decode.running -= 1
        job.decode.tokens -= job.owed
        self._count(now, job)

    def lost(self, now: float, job: Job) -> None:
        """A replica died with the job. Once, and before the client saw a byte, it is tried elsewhere."""
        if job.unit is None:  # it was there before the simulation began, and is in nobody's figures
            return
        if job.hands_over:
            self._leave_prefill(now, job)
            job.tries += 1
            job.hands_over = False
            if job.tries < 2:
                self._prefill(now, job)
            else:
                job.remote = False
                self._send(now, job, Reason.PREFILL_FAILED_LOCAL)
            return
        if job.remote and not job.kv_s and job.prefill.boot == job.prefill_boot:
            job.prefill.let_go(now, job.prompt)
        job.unit.inflight -= 1
        job.decode.running -= 1
        job.decode.tokens -= job.owed
        seen = 0.0 < job.first_s <= now
        job.tries += 1
        if seen or job.tries > 1:
            self.failed += 1
            return
        again = Job(job.arrival)
        again.tries = job.tries
        self._route(now, again)

    @property
    def inflight(self) -> int:
        """Requests that have been taken and not answered."""
        return sum(unit.inflight for unit in self.units)

    def look(self) -> None:
        """Ask every engine for its KV use, as the router does once a second."""
        for unit in self.units:
            for replica in unit.all_decodes:
                replica.kv_use = replica.held / replica.kv_tokens if replica.kv_tokens else None

    def _count(self, now: float, job: Job) -> None:
        at_s, hop_s = job.arrival.at_s, self._router.hop_s * (2 if job.remote else 1)
        first_s = job.first_s
        ttft_s = first_s - at_s + hop_s
        self.completed += 1
        self.output_tokens += job.output
        self.cached_tokens += job.cached
        self.ttft.add(ttft_s)
        self.e2e.add(now - at_s + hop_s)
        good = ttft_s <= self._ttft_limit_s
        if job.output > 1:
            tpot_s = (now - first_s) / (job.output - 1)
            self.tpot.add(tpot_s)
            good = good and tpot_s <= self._itl_limit_s
        self.good += good
        phases = self.phases
        phases[Phase.QUEUE] += job.admitted_s - at_s
        phases[Phase.PREFILL] += job.prefilled_s - job.admitted_s
        phases[Phase.TRANSFER] += job.kv_s - job.prefilled_s
        phases[Phase.FIRST_STEP] += first_s - job.kv_s
        if job.remote:
            self.moved_tokens += job.prompt
        self.last_s = now
