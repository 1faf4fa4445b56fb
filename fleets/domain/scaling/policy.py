"""`decide`: one look at a stage becomes numbers of units and replicas, with a sentence that has the figures.

Every five to ten seconds. The order of what moves: the local-prefill limit, which acts within a second; replicas of both roles
together; units. What the traffic is going to be is taken from the peaks of the last ten minutes, since a replica comes too late
for the burst that asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from denvweb.core.units import format_duration
from fleets.domain.scaling.need import HOLD_S, Need, decode_need, lifted, prefill_need, remember, watched_s
from fleets.domain.scaling.shape import choose, gpus_of
from fleets.domain.scaling.threshold import Threshold, move_threshold
from fleets.domain.scaling.types import Decision, Knob, Memory, Moved, Plant, Signals

STALE_S = 15.0  # routers report every second
TURN_S = 300.0  # a number turns round at most once in five minutes
CALM_S = 120.0  # from its last rise until a number may fall
FALL_EVERY_S = 30.0
FALL_RATIO = 0.25  # of its replicas that a number may lose in one step
COMING_FOR = 3.0  # bring-up times for which replicas that were asked for are counted as coming


def decide(plant: Plant, signals: Signals, memory: Memory) -> Decision:
    """What the numbers should be from now on. Without fresh figures nothing moves, and nothing is forgotten or learned."""
    signals = _clean(signals)
    below = memory.local_prefill_below if memory.local_prefill_below is not None else plant.local_prefill_below
    if signals.age_s is None or signals.age_s > STALE_S:
        since = "no router has reported" if signals.age_s is None else f"the last figures are {format_duration(signals.age_s)} old"
        return Decision(dict(signals.counts), below, memory, f"{since}; nothing is changed")
    memory = remember(plant, signals, memory)
    prefill, decode = prefill_need(plant, signals, memory), decode_need(plant, signals, memory)
    threshold = _threshold(plant, memory, prefill, decode, signals.at_s)
    needs, memory = _needs(plant, signals, memory, prefill, decode, threshold)
    wanted = choose(plant, needs, signals.counts[Knob.UNITS])
    counts, waits = _allowed(plant, signals, memory, wanted)
    if threshold.below != below:
        memory = replace(memory, local_prefill_below=threshold.below, below_moved_s=signals.at_s)
    memory = replace(memory, moved=_moved(signals, memory, counts))
    sentence = _sentence(signals, needs, counts, waits, threshold)
    return Decision(counts, threshold.below, memory, sentence, waits)


def _clean(signals: Signals) -> Signals:
    """A figure that is no number is not known."""
    figures = {name: getattr(signals, name) for name in Signals.__dataclass_fields__ if name not in {"at_s", "counts", "ready"}}
    unknown: dict[str, Any] = {name: None for name, value in figures.items() if value is not None and not isfinite(value)}
    return replace(signals, **unknown)


def _threshold(plant: Plant, memory: Memory, prefill: Need, decode: Need, at_s: float) -> Threshold:
    if Knob.PREFILL not in plant.bounds:
        return Threshold(plant.local_prefill_below)
    return move_threshold(plant, memory, prefill, decode, at_s)


def _needs(
    plant: Plant, signals: Signals, memory: Memory, prefill: Need, decode: Need, threshold: Threshold
) -> tuple[dict[Knob, Need], Memory]:
    """By role: the forecast, with what is pressed now unless the local-prefill limit has just helped; unknown means "as it is"."""
    found: dict[Knob, Need] = {}
    for role in plant.roles:
        if role is Knob.AGGREGATED:
            need = _together(prefill, decode)
            known = signals.prompts_per_s is not None and signals.sequences is not None
        else:
            need = prefill if role is Knob.PREFILL else decode
            known = (signals.prompts_per_s if role is Knob.PREFILL else signals.sequences) is not None
        total = signals.counts[role] * signals.counts[Knob.UNITS]
        if not known:
            need = replace(need, replicas=max(need.replicas, total), why=f"{need.why or role.value}; its load is not known")
        if threshold.helped is not role:
            need, memory = lifted(memory, role, need, signals.ready.get(role, 0), _coming(plant, signals, memory, role))
        found[role] = need
    return found, memory


def _together(prefill: Need, decode: Need) -> Need:
    """One replica does both."""
    pressures = [need.pressure for need in (prefill, decode) if need.pressure is not None]
    busy = prefill.busy + decode.busy
    replicas = max(prefill.replicas, decode.replicas, int(busy) + 1)
    return Need(replicas, busy, max(pressures, default=None), f"{prefill.why}; {decode.why}")


def _coming(plant: Plant, signals: Signals, memory: Memory, role: Knob) -> int:
    """Replicas that were asked for and do not serve yet; those that take far too long are not waited for."""
    missing = signals.counts[role] * signals.counts[Knob.UNITS] - signals.ready.get(role, 0)
    last = memory.moved.get(role)
    overdue = last is not None and signals.at_s - last.at_s > COMING_FOR * plant.bring_up_s
    return 0 if overdue else max(0, missing)


def _allowed(plant: Plant, signals: Signals, memory: Memory, wanted: Mapping[Knob, int]) -> tuple[dict[Knob, int], dict[Knob, float]]:
    """The wanted numbers as far as they may move now, and how long the others wait. Both halves of a rebalance, or what fits of it."""
    counts, waits = dict(signals.counts), {}
    for knob, target in wanted.items():
        now = signals.counts[knob]
        target = plant.bounds[knob].clamp(target)
        wait_s = 0.0 if target == now else _wait_s(memory, knob, target > now, signals.at_s)
        if wait_s > 0:
            waits[knob] = wait_s
        elif target < now:
            counts[knob] = max(target, now - max(1, int(now * FALL_RATIO)))
        else:
            counts[knob] = target
    while gpus_of(plant, counts) > plant.budget:
        grown = [role for role in plant.roles if counts[role] > signals.counts[role]]
        if not grown:
            break
        counts[max(grown, key=lambda role: counts[role] / wanted[role])] -= 1
    return counts, waits


def _wait_s(memory: Memory, knob: Knob, up: bool, at_s: float) -> float:
    """How long until a number may move this way. None falls before the traffic was watched for as long as peaks are held."""
    waits = [0.0] if up else [HOLD_S - watched_s(memory, at_s)]
    last = memory.moved.get(knob)
    if last is not None and last.up != up and last.turned_s is not None:
        waits.append(last.turned_s + TURN_S - at_s)
    if last is not None and not up:
        waits.append(last.at_s + (CALM_S if last.up else FALL_EVERY_S) - at_s)
    return max(0.0, *waits)


def _moved(signals: Signals, memory: Memory, counts: Mapping[Knob, int]) -> dict[Knob, Moved]:
    moved = dict(memory.moved)
    for knob, count in counts.items():
        if count != signals.counts[knob]:
            up, last = count > signals.counts[knob], moved.get(knob)
            turned = signals.at_s if last is not None and last.up != up else last.turned_s if last is not None else None
            moved[knob] = Moved(signals.at_s, up, turned)
    return moved


def _sentence(
    signals: Signals, needs: Mapping[Knob, Need], counts: Mapping[Knob, int], waits: Mapping[Knob, float], threshold: Threshold
) -> str:
    """What is decided about each number, and on which figures."""
    parts = [threshold.why] if threshold.why else []
    for knob, count in counts.items():
        now = signals.counts[knob]
        move = f"{knob.value} {now} -> {count}" if count != now else f"{knob.value} stays {now}"
        if knob in waits:
            move += f" for {format_duration(waits[knob])} yet"
        if knob in needs:
            pressure = needs[knob].pressure
            used = "" if pressure is None else f", p99 at {pressure:.0%} of what is allowed"
            move += f": {needs[knob].why}{used}"
        if knob in needs or count != now:
            parts.append(move)
    return "; ".join(parts)
