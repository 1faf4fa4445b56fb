"""A freeze window as somebody asks for it, checked: each mistake is named by its field."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time
from zoneinfo import available_timezones

from denvweb.core.errors import InvalidError
from releases.domain.freezes import DAYS, FreezeWindow

_MOST_REASON = 200


@dataclass(frozen=True, slots=True)
class FreezeRequest:
    """`days` (`mon` to `sun`) with `start` and `end` (`18:00`, local to `zone`) recur; `begins_at` and `ends_at` are for once.

    Without `model` it is about every model, without `stage` about every stage of the model.
    """

    zone: str
    reason: str
    model: str = ""
    stage: str = ""
    days: tuple[str, ...] = ()
    start: str = ""
    end: str = ""
    begins_at: datetime | None = None
    ends_at: datetime | None = None


def read_freeze(asked: FreezeRequest, *, id: str, now: datetime) -> FreezeWindow:
    """The window that is asked for. InvalidError `freeze-invalid` names every field that is wrong."""
    problems: dict[str, list[str]] = {}
    if asked.zone not in available_timezones():
        problems["zone"] = [f"{asked.zone[:60]} is no time zone; write one such as Europe/Berlin or UTC"]
    if not asked.reason.strip() or len(asked.reason) > _MOST_REASON or not asked.reason.isprintable():
        problems["reason"] = [f"say in one line of at most {_MOST_REASON} characters why; whoever is held up reads it"]
    if asked.stage and not asked.model:
        problems["stage"] = ["a stage belongs to a model; name that too"]
    recurring = bool(asked.days or asked.start or asked.end)
    if recurring == bool(asked.begins_at or asked.ends_at):
        problems["days"] = ["write either days with start and end, or begins_at with ends_at"]
    start, end = (_time(asked, name, problems) for name in ("start", "end")) if recurring else (None, None)
    (_check_days if recurring else _check_once)(asked, now, problems)
    if problems:
        sentences = [f"{field}: {problem}" for field, found in problems.items() for problem in found]
        raise InvalidError(f"This is no freeze window. {'; '.join(sentences)}.", code="freeze-invalid", fields=problems)
    days = tuple(day for day in DAYS if day in asked.days)
    return FreezeWindow(
        id, asked.reason.strip(), asked.zone, asked.model, asked.stage, days, start, end, asked.begins_at, asked.ends_at
    )  # fmt: skip


def _time(asked: FreezeRequest, name: str, problems: dict[str, list[str]]) -> time | None:
    text: str = getattr(asked, name)
    try:
        if len(text) != len("18:00"):
            raise ValueError(text)
        return time.fromisoformat("00:00" if (name, text) == ("end", "24:00") else text)
    except ValueError:
        problems[name] = [f"`{text[:20]}` is no time of day; write one such as 18:00"]
        return None


def _check_days(asked: FreezeRequest, now: datetime, problems: dict[str, list[str]]) -> None:
    wrong = [day[:20] for day in asked.days if day not in DAYS]
    if wrong or not asked.days:
        problems["days"] = [f"{', '.join(wrong) or 'nothing'} is no day; write any of {', '.join(DAYS)}"]


def _check_once(asked: FreezeRequest, now: datetime, problems: dict[str, list[str]]) -> None:
    for name in ("begins_at", "ends_at"):
        at: datetime | None = getattr(asked, name)
        if at is None or at.tzinfo is None:
            problems[name] = ["write a moment with its offset, such as 2026-12-24T00:00:00+01:00"]
    if asked.begins_at and asked.ends_at and "begins_at" not in problems and "ends_at" not in problems:
        if asked.ends_at <= asked.begins_at:
            problems["ends_at"] = ["it must be after begins_at"]
        elif asked.ends_at <= now:
            problems["ends_at"] = ["it is over already"]
