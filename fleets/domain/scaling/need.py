"""How many replicas of each role the traffic needs: from the highest peaks of the last minutes, the trend, and what is pressed now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, log
from statistics import pstdev

from fleets.domain.scaling.types import Knob, Memory, Peak, Plant, Signals
from fleets.domain.sizing.queueing import servers_for

PEAK_S = 30.0  # one peak is kept for each half minute ...
HOLD_S = 600.0  # ... and each for ten: bursts of code traffic come back within that, and are over before a replica is up
MARGIN = log(99)  # standard deviations of the peaks that are added to the highest: see `next_peak`
BURST_S = 10.0  # over which a burst is measured
MOST_QUEUE = 1000.0  # replicas; over it a queue in front of them makes no difference
TREND_S = 150.0  # over which a rise is carried forward
KV_TARGET = 0.80  # of a decode replica's KV memory; over it the router stops prefilling locally
PRESSED = 0.9  # of a limit: from here on replicas are added whatever the forecast says
WAITS = 0.25  # of what waiting may take of a limit: from here on a late first token is put down to waiting
SPARE = 0.6  # of a limit: under it a role can take work from the other
MOST_LIFT = 2.0  # no look more than doubles a role
QUEUED_LOOKS = 3  # at which prompts wait until the ten seconds that a rate is taken over were all busy ones
MEMORY_OF_CAPACITY = 0.3  # weight of the newest sight of what a replica carries
BELIEVED = (0.4, 2.5)  # how far that may be from the timing model


@dataclass(frozen=True, slots=True)
class Need:
    """Replicas of the whole stage. `pressure` is the nearest limit's use now, None without figures; `busy` the load in replicas."""

    replicas: int
    busy: float
    pressure: float | None
    why: str


def remember(plant: Plant, signals: Signals, memory: Memory) -> Memory:
    """The memory with this look in it. What is not known leaves what was known."""
    learned = _learn(plant, signals, memory)
    decode = signals.ready.get(Knob.DECODE, signals.ready.get(Knob.AGGREGATED, 0))
    now = Peak(
        at_s=signals.at_s,
        prompts_per_s=signals.prompts_per_s or 0.0,
        prompt_tokens_per_s=signals.prompt_tokens_per_s or 0.0,
        burst_tokens_per_s=signals.burst_tokens_per_s or 0.0,
        sequences=signals.sequences or 0.0,
        kv_replicas=(signals.kv_use or 0.0) * decode,
    )
    kept = [peak for peak in memory.peaks if signals.at_s - HOLD_S < peak.at_s <= signals.at_s]
    if kept and signals.at_s - kept[-1].at_s < PEAK_S:
        kept[-1] = _highest(kept[-1], now)
    else:
        kept.append(now)
    return replace(learned, peaks=tuple(kept), queued_looks=memory.queued_looks + 1 if signals.prefill_queue else 0)


def watched_s(memory: Memory, at_s: float) -> float:
    """For how long the traffic has been watched without a gap, as far as peaks are held; a whole `HOLD_S` once they cover it."""
    begun = at_s
    for peak in reversed(memory.peaks):
        if begun - peak.at_s > 2 * PEAK_S:
            break
        begun = peak.at_s
    watched = at_s - begun
    return HOLD_S if watched >= HOLD_S - 2 * PEAK_S else watched


def _highest(one: Peak, other: Peak) -> Peak:
    heavier = one if one.prompt_tokens_per_s >= other.prompt_tokens_per_s else other
    return Peak(
        at_s=one.at_s,
        prompts_per_s=heavier.prompts_per_s,  # of the same instant: the two make a mean prompt
        prompt_tokens_per_s=heavier.prompt_tokens_per_s,
        burst_tokens_per_s=max(one.burst_tokens_per_s, other.burst_tokens_per_s),
        sequences=max(one.sequences, other.sequences),
        kv_replicas=max(one.kv_replicas, other.kv_replicas),
        lifted=one.lifted,
    )


def _learn(plant: Plant, signals: Signals, memory: Memory) -> Memory:
    """What one replica carries is seen when it is full: prompts that queue all the time, gaps at their limit."""
    ready = signals.ready.get(Knob.DECODE, 0)
    sequences, itl, limit = signals.sequences, signals.itl_p99_s, plant.itl_limit_s
    if sequences and ready and itl is not None and limit is not None and itl > limit:
        memory = replace(memory, replica_sequences=_towards(memory.replica_sequences, sequences / ready, plant.decode_sequences))
    ready, tokens = signals.ready.get(Knob.PREFILL, 0), signals.prefilled_tokens_per_s
    if memory.queued_looks >= QUEUED_LOOKS and signals.prefill_queue and ready and tokens:
        memory = replace(memory, tokens_per_s=_towards(memory.tokens_per_s, tokens / ready, plant.prefill_tokens_per_s))
    return memory


def _towards(known: float | None, seen: float, thought: float) -> float:
    low, high = BELIEVED
    before = thought if known is None else known
    value = before + MEMORY_OF_CAPACITY * (seen - before)
    return max(low * thought, min(high * thought, value))


def prefill_need(plant: Plant, signals: Signals, memory: Memory) -> Need:
    """Replicas that keep the p99 wait of the heaviest minute, and work off the heaviest ten seconds, inside the TTFT limit.

    The minute is a G/G/c queue (Allen-Cunneen). A burst of B tokens a second for ten seconds is worked off in time when the pool
    computes at least 10 B / (10 + what the limit leaves for waiting): the arrival curve of network calculus (Cruz, 1991).
    """
    capacity = memory.tokens_per_s or plant.prefill_tokens_per_s
    pressure = _prefill_pressure(plant, signals, capacity)
    top = max(memory.peaks, key=lambda peak: peak.prompt_tokens_per_s, default=None)
    if top is None or top.prompt_tokens_per_s <= 0:
        return Need(1, 0.0, pressure, "no prompts for prefill")
    tokens = forecast([(peak.at_s, peak.prompt_tokens_per_s) for peak in memory.peaks], signals.at_s, plant.bring_up_s)
    burst = next_peak([peak.burst_tokens_per_s for peak in memory.peaks])
    service_s = top.prompt_tokens_per_s / max(top.prompts_per_s, 1e-9) / capacity
    slack_s = max(0.25 * plant.ttft_limit_s, plant.ttft_limit_s - service_s) if plant.ttft_limit_s else 4 * service_s
    in_burst = burst * BURST_S / (BURST_S + slack_s) / capacity
    busy = max(tokens / capacity, in_burst)
    replicas = ceil(busy)
    if tokens / capacity < MOST_QUEUE:
        steady = servers_for(tokens / capacity / service_s, service_s, wait_s=slack_s, q=0.99, gap_spread=1.0, service_spread=1.0)
        replicas = max(steady, ceil(in_burst))
    why = f"{tokens:,.0f} prompt tokens/s expected, {burst:,.0f} in a burst, of {capacity:,.0f} a replica"
    return Need(max(1, replicas), busy, pressure, why)


def _prefill_pressure(plant: Plant, signals: Signals, capacity: float) -> float | None:
    """The share of the TTFT limit that waiting uses up; half of the limit is all that it may take.

    The wait of those that were served is known from the router's queue, and of those that wait now from their number. A first token
    that is late while hardly anybody waits is of a long prompt, and no replica more would make it earlier.
    """
    limit = plant.ttft_limit_s
    if limit is None:
        return None
    waits = [2.0 * signals.queue_p99_s / limit] if signals.queue_p99_s is not None else []
    if signals.prefill_queue is not None:
        tokens = (signals.prompt_tokens_per_s or 0.0) / (signals.prompts_per_s or 1.0)
        waits.append(2.0 * signals.prefill_queue * tokens / (max(1, signals.ready.get(Knob.PREFILL, 1)) * capacity) / limit)
    waited = max(waits, default=None)
    if signals.ttft_p99_s is None:
        return waited
    late = signals.ttft_p99_s / limit
    by_prefill = signals.prefill_share is None or signals.prefill_share >= 0.5
    queues = waited is None or waited >= WAITS
    return max(waited or 0.0, late if by_prefill and queues else min(SPARE, late))


def decode_need(plant: Plant, signals: Signals, memory: Memory) -> Need:
    """Replicas that hold the KV and keep the gaps between tokens at the forecast number of sequences."""
    capacity = memory.replica_sequences or plant.decode_sequences
    sequences = forecast([(peak.at_s, peak.sequences) for peak in memory.peaks], signals.at_s, plant.bring_up_s)
    full = forecast([(peak.at_s, peak.kv_replicas) for peak in memory.peaks], signals.at_s, plant.bring_up_s)
    busy = max(sequences / capacity, full / KV_TARGET)
    parts = [signals.kv_use / KV_TARGET * PRESSED] if signals.kv_use is not None else []
    if signals.itl_p99_s is not None and plant.itl_limit_s is not None:
        parts.append(signals.itl_p99_s / plant.itl_limit_s)
    why = f"{sequences:,.0f} sequences expected of {capacity:,.0f} a replica, KV for {full:.1f} replicas"
    return Need(max(1, ceil(busy - 1e-9)), busy, max(parts, default=None), why)


def lifted(memory: Memory, role: Knob, need: Need, ready: int, coming: int) -> tuple[Need, Memory]:
    """The need with what is pressed now, in proportion and at most doubled, and with what was pressed while peaks are held.

    While replicas that were asked for are coming, no more are: these have not had their effect. What a lift asked for is held like
    a peak: that it was needed once says more than a forecast that had not seen it coming.
    """
    if need.pressure is not None and need.pressure >= PRESSED and coming <= 0 and ready >= 1 and memory.peaks:
        more = max(ready + 1, ceil(ready * min(MOST_LIFT, need.pressure)))
        last = memory.peaks[-1]
        last = replace(last, lifted={**last.lifted, role: max(more, last.lifted.get(role, 0))})
        memory = replace(memory, peaks=(*memory.peaks[:-1], last))
    held = max((peak.lifted.get(role, 0) for peak in memory.peaks), default=0)
    return replace(need, replicas=max(need.replicas, held)), memory


def next_peak(peaks: Sequence[float]) -> float:
    """The highest of the peaks, and `ln 99` standard deviations more.

    The next ten minutes are as likely as not to have a higher peak than the last ten. Where the tail of peaks is exponential, as
    that of bursts is or nearly, k standard deviations (the scale of the tail) bring that down from 1/2 to 1 / (1 + e^k): the maxima
    of two equally long spans differ by a logistic variable. What is promised at the 99th percentile asks for 1%, so k = ln 99.
    Steady traffic has no spread, and pays nothing.
    """
    return max(peaks, default=0.0) + (MARGIN * pstdev(peaks) if len(peaks) > 1 else 0.0)


def forecast(values: Sequence[tuple[float, float]], at_s: float, ahead_s: float) -> float:
    """What is to be expected until a replica that is asked for now would serve: the highest peak, or more where it rises.

    `values` are (time, peak) in order of time. The rise is the least-squares slope of the newest peaks; it is carried `ahead_s`
    forward, to twice the newest peak at most, since a line through one burst promises too much.
    """
    held = max((value for _, value in values), default=0.0)
    recent = [(then, value) for then, value in values if at_s - then <= TREND_S]
    if len(recent) < 3:
        return held
    mean_at = sum(then for then, _ in recent) / len(recent)
    mean = sum(value for _, value in recent) / len(recent)
    spread = sum((then - mean_at) ** 2 for then, _ in recent)
    slope = sum((then - mean_at) * (value - mean) for then, value in recent) / spread if spread else 0.0
    return max(held, min(2.0 * recent[-1][1], mean + slope * (at_s + ahead_s - mean_at)))
