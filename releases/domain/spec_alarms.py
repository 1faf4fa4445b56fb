"""The `alarms` sections: the model's own at the top of the file, and each stage's, which may change or switch off single lines of it."""

from __future__ import annotations

from dataclasses import dataclass

from denvweb.core.words import did_you_mean
from metrics.domain.alarm_text import KV_EFFECTIVE, NEEDS_PREFILL_POOL, parse_alarm, parse_over_baseline, unknown_alarm
from metrics.domain.types import AlarmSpec
from releases.domain.source import Entry, Mapping, Node, Scalar, key_text
from releases.domain.spec_reader import Section, shown, text
from releases.domain.spec_types import Mode

OFF = "off"  # in a stage: this alarm of the model's is not for it
_MAX, _MIN, _OVER = "max", "min", "over-baseline"


@dataclass(frozen=True, slots=True)
class AlarmLine:
    """One line of a section: up to two alarms, with their limits as written by name. None at all: it is switched off."""

    texts: dict[str, str]
    specs: tuple[AlarmSpec, ...]


Alarms = dict[str, AlarmLine]  # by the name that the line begins with


def read_alarms(section: Section | None, *, may_switch_off: bool = False) -> Alarms:
    """All lines without mistakes."""
    lines: Alarms = {}
    for entry in section.entries() if section else ():
        line = _line(section, entry, may_switch_off) if section else None
        if line is not None:
            lines[entry.key] = line
    return lines


def for_stage(section: Section | None, defaults: Alarms, mode: Mode) -> tuple[dict[str, str], tuple[AlarmSpec, ...]]:
    """A stage's limits as written by name, and as they are tested: its own lines over the model's.

    A model's alarm on a prefill pool is none of a stage without one; a stage that asks for it itself is told so.
    """
    own = read_alarms(section, may_switch_off=True)
    if mode is Mode.AGGREGATED:
        for entry in section.entries() if section else ():
            if section and any(spec.metric in NEEDS_PREFILL_POOL for spec in own.get(entry.key, AlarmLine({}, ())).specs):
                section.fail(entry.place, entry.key, "this stage has no prefill pool, so nothing is ever counted for it; remove the line")
        defaults = {name: line for name, line in defaults.items() if all(spec.metric not in NEEDS_PREFILL_POOL for spec in line.specs)}
    lines = {**defaults, **own}
    texts = {name: limit for line in lines.values() for name, limit in line.texts.items()}
    return texts, tuple(spec for line in lines.values() for spec in line.specs)


def _line(section: Section, entry: Entry, may_switch_off: bool) -> AlarmLine | None:
    name = key_text(entry.key)
    if wrong := unknown_alarm(name):
        section.fail(entry.place, entry.key, wrong)
        return None
    if isinstance(entry.value, Mapping):
        below = section.section(entry.key)
        return _two(below, entry, name) if below else None
    if may_switch_off and _word(entry.value) == OFF:
        return AlarmLine({}, ())
    limit = section.take(entry.key, text("a limit"), None)
    if limit is None:
        return None
    spec = parse_alarm(name, limit)
    if isinstance(spec, str):
        section.fail(entry.value.place, entry.key, spec)
        return None
    return AlarmLine({name: limit}, (spec,))


def _two(section: Section, entry: Entry, name: str) -> AlarmLine | None:
    """`{ max: 60ms, over-baseline: 25% }`, or one of the two; `min` for a share that must not fall below it."""
    word = _MIN if name == KV_EFFECTIVE else _MAX
    for written in section.entries():
        if written.key not in (word, _OVER):
            hint = did_you_mean(written.key, (word, _OVER)) or f"; an alarm takes {word} and {_OVER}"
            section.fail(written.place, written.key, f"not a key here{hint}")
            return None
    limit, over = section.take(word, text("a limit"), None), section.take(_OVER, text("a percentage"), None)
    if limit is None and over is None:
        section.fail(entry.value.place, "", f"no limit is here; write {word}, {_OVER} or both")
        return None
    texts, specs = {}, list[AlarmSpec]()
    for key, written_text in ((word, limit), (_OVER, over)):
        if written_text is None:
            continue
        spec = parse_alarm(name, written_text) if key == word else parse_over_baseline(name, written_text, specs[0] if specs else None)
        if isinstance(spec, str):
            place = next(item.value.place for item in section.entries() if item.key == key)
            section.fail(place, key, spec)
            return None
        texts[spec.name] = f"+{written_text}" if spec.over else written_text
        specs.append(spec)
    return AlarmLine(texts, tuple(specs))


def _word(node: Node) -> str:
    return shown(node) if isinstance(node, Scalar) else ""
