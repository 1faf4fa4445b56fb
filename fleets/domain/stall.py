"""Whether an engine hangs, from what can be seen of it: that it answers, that work is with it, and that its figures move."""

from __future__ import annotations

from dataclasses import dataclass, replace

SILENT_S = 10.0  # without an answer: an engine whose process is stopped
STUCK_S = 10.0  # with work and no figure that moves: one that answers /health and computes nothing
LOOKS_MIN = 2  # that went unanswered: one lost answer is no silence
GAP_S = 8.0  # between two looks: whoever looks was not there itself, and has seen no silence


@dataclass(frozen=True, slots=True)
class Pulse:
    """What was seen of one engine process. Times are the looker's own clock, in seconds."""

    looked_s: float
    answered_s: float  # last answer, or the first look
    moved_s: float  # since when nothing moves although work is with it
    marks: tuple[float, ...] = ()  # figures of which some move with every step that the engine makes
    missed: int = 0  # looks without an answer, in a row


def look(before: Pulse | None, *, now_s: float, answered: bool, busy: bool = False, marks: tuple[float, ...] = ()) -> Pulse:
    """The pulse after one more look.

    `busy` is whether the engine has work that is its own to do (not: waiting for another engine's KV). An engine that tells no
    `marks` is never held to be stuck: its slowness cannot be told from a hang.
    """
    if before is None or now_s - before.looked_s > GAP_S:
        return Pulse(now_s, now_s, now_s, marks)
    if not answered:
        return replace(before, looked_s=now_s, missed=before.missed + 1)
    moved = not busy or not marks or marks != before.marks
    return Pulse(now_s, now_s, now_s if moved else before.moved_s, marks or before.marks)


def silence(pulse: Pulse, after_s: float = SILENT_S) -> str:
    """Why an engine that answers nothing is taken for hung; empty when it is not."""
    silent_s = pulse.looked_s - pulse.answered_s
    if pulse.missed < LOOKS_MIN or silent_s < after_s:
        return ""
    return f"it hangs: no answer for {silent_s:.0f} s, though its process is there"


def stuck(pulse: Pulse, *, after_s: float = STUCK_S, allowed_s: float = 0.0) -> str:
    """Why an engine that answers is taken for hung; empty when it is not. `allowed_s` is added for work that takes long by its nature."""
    still_s = pulse.looked_s - pulse.moved_s
    if pulse.missed or still_s < after_s + allowed_s:
        return ""
    return f"it hangs: it answers, but has made no step for {still_s:.0f} s with requests in it"
