"""What must hold of everything that was recorded, however it was broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from metrics.domain.views import EventView
from releases.domain.views import RolloutView
from tests.chaos.clients import Sent
from tests.chaos.monkey import Injury
from tests.chaos.watch import Seen

ENGINE_S = 25.0  # after it lost an engine or its router, the stage may fail requests for so long
ROUTER_S = 30.0
STABLE_S = 60.0  # an acknowledged rollback has all traffic on the old release by then, whatever is broken meanwhile


@dataclass(slots=True)
class Journey:
    """One rollout that was asked for."""

    id: str
    release: str  # `ds-flash@7`
    old: str
    bad: bool
    ended: RolloutView | None = None
    ended_at: float = 0.0
    rollback_acknowledged_at: float | None = None
    next_began_at: float = float("inf")  # of the rollout after it


@dataclass(slots=True)
class Record:
    """All that was seen."""

    injuries: Sequence[Injury] = ()
    tables: Sequence[Seen] = ()
    sent: Sequence[Sent] = ()
    journeys: list[Journey] = field(default_factory=list)
    journal: Sequence[EventView] = ()
    read: Sequence[int] = ()  # numbers of the journal's rows in the order in which a reader got them
    left: Sequence[str] = ()  # processes that were there after the stop


def violations(record: Record) -> list[str]:
    """Every rule that was broken, in a sentence; empty when all hold."""
    return [
        *_tables(record),
        *_capacity(record),
        *_rollouts(record),
        *_rollbacks(record),
        *_journal(record),
        *_requests(record),
        *(f"process {what} was left after the stop" for what in record.left),
    ]


def _tables(record: Record) -> list[str]:
    found, last = [], (0, 0)
    for seen in record.tables:
        generation = (seen.table.epoch, seen.table.generation)
        if generation < last:
            found.append(f"the router went back from table {last} to {generation}")
        last = generation
        if seen.table.weights and sum(seen.table.weights.values()) != 10_000:
            found.append(f"weights do not sum to 100%: {seen.table.weights}")
    return found


def _capacity(record: Record) -> list[str]:
    """A weight only grows where there is a unit to take it, unless an engine was hurt just then or the others are worse."""
    found, before = [], dict[str, int]()
    for seen in record.tables:
        for release, weight in seen.weights.items():
            grew = weight > before.get(release, 0)
            others = any(seen.capacity(other) for other in {*before, *seen.weights} if other != release)
            if grew and not seen.capacity(release) and others and not _hurt(record.injuries, seen.at, 20.0):
                found.append(f"{release} got {weight / 100:g}% without a unit that can serve it")
        before = seen.weights
    return found


def _hurt(injuries: Sequence[Injury], at: float, within_s: float) -> bool:
    """Whether an engine was hurt shortly before: what was ready when it was decided need not be any more."""
    engines = (injury for injury in injuries if injury.what.startswith("engine"))
    return any(injury.at - 1 <= at <= injury.at + injury.lasted_s + within_s for injury in engines)


def _rollouts(record: Record) -> list[str]:
    found = []
    for journey in record.journeys:
        if journey.ended is None:
            found.append(f"rollout {journey.id} of {journey.release} never ended")
        elif journey.ended.state == "succeeded" and journey.bad:
            found.append(f"the bad release {journey.release} succeeded: {journey.ended.why}")
        elif journey.ended.state not in {"succeeded", "rolled-back", "superseded"}:
            found.append(f"rollout {journey.id} ended as {journey.ended.state}")
    return found


def _rollbacks(record: Record) -> list[str]:
    found = []
    for journey in record.journeys:
        if journey.rollback_acknowledged_at is not None:
            if journey.ended is None or journey.ended.state != "rolled-back":
                found.append(f"an acknowledged rollback of {journey.release} was lost: {journey.ended and journey.ended.state}")
            took_s = _back_after_s(record, journey, journey.rollback_acknowledged_at)
            if took_s is None or took_s > STABLE_S:
                found.append(
                    f"an acknowledged rollback of {journey.release} was not at 100% of {journey.old} within {STABLE_S:g} s: {took_s}"
                )
        if journey.ended is not None and journey.ended.state == "rolled-back":
            late = [
                seen for seen in record.tables if journey.ended_at + 1 < seen.at < journey.next_began_at and journey.release in seen.weights
            ]
            if late:
                found.append(f"{journey.release} had weight {late[0].weights} after it was rolled back")
    return found


def _back_after_s(record: Record, journey: Journey, at: float) -> float | None:
    """Seconds from the acknowledgement until the router had all traffic on the old release; 0 when it had it before."""
    in_force = [seen for seen in record.tables if seen.at <= at]
    if in_force and in_force[-1].weights == {journey.old: 10_000}:
        return 0.0
    return next((seen.at - at for seen in record.tables if seen.at > at and seen.weights == {journey.old: 10_000}), None)


def _journal(record: Record) -> list[str]:
    found = []
    written = sorted(event.seq for event in record.journal)
    if record.read:
        unread = [seq for seq in written if record.read[0] < seq <= record.read[-1] and seq not in set(record.read)]
        if unread:
            found.append(f"a reader of the journal never got rows {unread}")
        if len(set(record.read)) != len(record.read):
            found.append("a reader of the journal got a row twice")
        if written and record.read[-1] < written[-1]:
            found.append(f"a reader of the journal is at {record.read[-1]}, the journal at {written[-1]}")
    for journey in record.journeys:
        kinds = [event.kind for event in record.journal if event.rollout == journey.id]
        once = ("rollout.started", "rollout.succeeded", "rollout.rolling-back", "rollout.rolled-back")
        found += [f"{kind} is in the journal more than once for rollout {journey.id}" for kind in once if kinds.count(kind) > 1]
        if (
            journey.ended is not None
            and journey.ended.state in {"succeeded", "rolled-back"}
            and f"rollout.{journey.ended.state}" not in kinds
        ):
            found.append(f"the end of rollout {journey.id} ({journey.ended.state}) is not in the journal: {kinds}")
    return found


def _requests(record: Record) -> list[str]:
    """Only requests on a hurt engine or router may fail."""
    windows = [
        (injury.at - 1, injury.at + injury.lasted_s + (ROUTER_S if injury.what.startswith("router") else ENGINE_S))
        for injury in record.injuries
        if injury.serves
    ]
    innocent = [sent for sent in record.sent if sent.error and not any(low <= sent.ended and sent.began <= high for low, high in windows)]
    return [f"{len(innocent)} requests failed with neither engine nor router hurt, the first: {innocent[0].error}"] if innocent else []
