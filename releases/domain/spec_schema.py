"""The JSON schema of a spec file, made from the types that the file is read into, so that editors complete and check it.

It knows keys, words and forms; what holds between values (a canary under the first step, GPUs that fit) only a dry run knows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.types import Faults, PlacementRule, Role
from metrics.domain.alarm_text import ALARM_NAMES, ERROR_RATE, KV_EFFECTIVE, KV_USE, PREFILL_QUEUE
from releases.domain.spec_about import ABOUT
from releases.domain.spec_topology import MOST_GPUS, MOST_REPLICAS
from releases.domain.spec_types import Approval, KvCacheSpec, Mode, ProbePolicy, RolloutPolicy, Scaling

Schema = dict[str, Any]

URL = "/api/v1/schema/denv.yaml"
_DURATION: Schema = {"type": "string", "pattern": r"^\s*(\d+(\.\d+)?\s*(us|ms|s|min|m|h|d)\s*)+$"}
_SHARE: Schema = {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*%\s*$"}
_RATIO: Schema = {"anyOf": [_SHARE, {"type": "number", "minimum": 0, "maximum": 1}]}
_SIZE: Schema = {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)\s*$"}
_NAME: Schema = {"type": "string", "pattern": r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"}
_NUMBER: Schema = {"type": "integer", "minimum": 1, "maximum": MOST_REPLICAS}
_COUNT: Schema = {
    "anyOf": [
        _NUMBER,
        {"type": "object", "properties": {"min": _NUMBER, "max": _NUMBER}, "required": ["min", "max"], "additionalProperties": False},
    ]
}
_QUEUE: Schema = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^\d+$"}]}
_TEXT: Schema = {"type": ["string", "number", "boolean"]}
# What a unit at the end of a field's name means in the file: the file writes the unit with the value, and not with the key.
_UNITS = {"_s": _DURATION, "_ratio": _SHARE, "_bytes": _SIZE}
_KINDS: Mapping[str, Schema] = {
    "bool": {"type": "boolean"},
    "int": {"type": "integer", "minimum": 1, "maximum": 100_000_000},
    "float": {"type": "number"},
    "str": _TEXT,
}


def words(kind: type[StrEnum], about: str) -> Schema:
    """One of the members of an enum."""
    return {"enum": [member.value for member in kind], "description": about}


def of_fields(kind: type[Any], about: str, **own: Schema) -> Schema:
    """A section for the fields of a dataclass; `own` are schemas of fields (by their own name) that a unit or a type does not tell."""
    properties = {}
    for found in dataclasses.fields(kind):
        unit = next((unit for unit in _UNITS if found.name.endswith(unit)), "")
        key = found.name.removesuffix(unit).replace("_", "-")
        schema = dict(own.get(found.name) or _UNITS.get(unit) or _KINDS[str(found.type).removesuffix(" | None")])
        properties[_KEYS.get((kind, found.name), key)] = schema
    return section(about, properties)


def section(about: str, properties: Schema, *required: str) -> Schema:
    """A mapping with these keys and no other."""
    found: Schema = {"type": "object", "description": about, "properties": properties, "additionalProperties": False}
    return {**found, "required": list(required)} if required else found


_KEYS = {
    (KvCacheSpec, "block_tokens"): "block-size",
    (ProbePolicy, "per_s"): "rate",
    (Faults, "error_ratio"): "error-ratio",
    (Faults, "hang_ratio"): "hang-ratio",
    (Faults, "kv_fail_ratio"): "kv-fail-ratio",
}
_BLOCKS = {"enum": [2**power for power in range(9)]}


def _by_role(about: str, of_role: Schema) -> Schema:
    return section(about, {role.value: of_role for role in Role})


def _topology(*, whole: bool) -> Schema:
    """The shape of a unit; a stage's need not be `whole`, for it changes the release's."""
    gpus = {"type": "integer", "minimum": 1, "maximum": MOST_GPUS}
    pool = section("One pool of a unit.", {"gpus": gpus, "replicas": _COUNT}, *(["gpus"] if whole else []))
    conditional = of_fields(
        ConditionalPolicy,
        "When decode does its own prefill.",
        local_prefill_below={"type": "integer", "minimum": 0, "maximum": 10_000_000},
        prefill_queue_above={"type": "integer", "minimum": 0, "maximum": 1_000_000},
    )
    found = section(
        "The shape of one serving unit.",
        {
            "mode": words(Mode, "Whether prefill and decode are pools of their own."),
            "prefill": {**pool, "description": "The pool that computes prompts."},
            "decode": {**pool, "description": "The pool that computes the answers' tokens."},
            "aggregated": {**pool, "description": "The pool that does both, with `mode: aggregated`."},
            **pool["properties"],  # of an aggregated unit, written without a section of its own
            "placement": words(PlacementRule, "Whether all of a unit is in one domain; `any` only where that was measured."),
            "conditional": conditional,
        },
    )
    shapes = [{"required": ["prefill", "decode"]}, {"required": ["mode", "aggregated"]}, {"required": ["mode", "gpus"]}]
    return {**found, "anyOf": shapes} if whole else found


def _limit(name: str) -> Schema:
    """The form of an alarm's limit: a time, a share or a number of requests."""
    if name == PREFILL_QUEUE:
        return {**_QUEUE, "examples": [32]}
    share = name in (ERROR_RATE, KV_EFFECTIVE, KV_USE)
    return {**_SHARE, "examples": ["99%" if name == KV_EFFECTIVE else "1%"]} if share else {**_DURATION, "examples": ["1500ms"]}


def _alarm(name: str, *, may_switch_off: bool) -> Schema:
    limit = _limit(name)
    word, than = ("min", "least") if name == KV_EFFECTIVE else ("max", "most")
    both = {
        word: {**limit, "description": f"The {than} that {name} may be."},
        "over-baseline": {**_SHARE, "examples": ["25%"], "description": "How much worse than the release beside it, at most."},
    }
    two = {**section("", both), "minProperties": 1}
    del two["description"]
    off = [{"const": "off"}, {"const": False}] if may_switch_off else []  # YAML 1.1 editors read a bare off as false
    also = ", or off" if may_switch_off else ""
    return {
        "anyOf": [limit, two, *off],
        "description": f"Limit of {name}: as a value, as {word} and over-baseline{also}.",
        "examples": limit["examples"],
    }


def _alarms(*, may_switch_off: bool) -> Schema:
    """Limits by alarm; in a stage a line of the model's may be switched off."""
    each = {name: _alarm(name, may_switch_off=may_switch_off) for name in ALARM_NAMES}
    return section("Limits that a rollout must keep, and a stage between rollouts.", each)


def _faults() -> Schema:
    factor = {"type": "number", "minimum": 0.01, "maximum": 1000}
    return of_fields(Faults, "Faults of one role.", slow_factor=factor, error_ratio=_RATIO, hang_ratio=_RATIO, kv_fail_ratio=_RATIO)


def _release() -> Schema:
    own: dict[str, Schema] = {
        "model": {**_NAME, "description": "What clients ask for by name.", "examples": ["ds-flash"]},
        "weights": {
            "type": "string",
            "pattern": r"^(hf://[^/\s@]+/[^/\s@]+(@\S+)?|file:///[^\s@]+(@\S+)?)$",
            "description": "hf://org/name@revision or file:///path@digest; pinned, so that the release stays what it is.",
            "examples": ["hf://deepseek-ai/DeepSeek-V4.1-Flash-1017@c41a7e2"],
        },
        "recipe": {
            "type": "string",
            "pattern": r"^[a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*@\d{1,6}$",
            "description": "How this model runs on an engine, as `denv recipes` lists them.",
            "examples": ["deepseek-v4.1-flash/deepinfer@3"],
        },
        "topology": _topology(whole=True),
        "kv-cache": of_fields(KvCacheSpec, "The KV cache; what is not written is the recipe's.", block_tokens=_BLOCKS),
        "engine": _by_role("Engine flags by role, over the recipe's.", {"type": "object", "additionalProperties": _TEXT}),
        "simulated-faults": _by_role("Faults of the simulated engine, by role; others refuse them.", _faults()),
        "secrets": {"type": "object", "propertyNames": {"pattern": "^[A-Z][A-Z0-9_]{0,63}$"}, "additionalProperties": _NAME},
    }
    return section("What should run.", own, "model", "weights", "recipe", "topology")


def _stage() -> Schema:
    rate = {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*/\s*(s|m|min|h)\s*$"}
    prompts = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    tokens = {"type": "integer", "minimum": 1, "maximum": 4096}
    probe = of_fields(ProbePolicy, "Requests that denv makes where users make too few.", per_s=rate, prompts=prompts, tokens=tokens)
    steps = {"type": "array", "items": _SHARE, "minItems": 1, "examples": [["50%", "100%"]]}
    approve = words(Approval, "Who lets a rollout pass its canary.")
    own: dict[str, Schema] = {
        "fleets": {
            "type": "array",
            "items": _NAME,
            "minItems": 1,
            "uniqueItems": True,
            "description": "Where it may run, best first, as `denv fleets` lists them.",
            "examples": [["gb200-use1"]],
        },
        "replicas": {**_COUNT, "description": ABOUT["stage.replicas"][0], "examples": [2]},
        "topology": _topology(whole=False),
        "alarms": _alarms(may_switch_off=True),
        "rollout": of_fields(
            RolloutPolicy, "How it is rolled out.", steps=steps, approve=approve, probe={**probe, "required": ["prompts"]}
        ),
        "scaling": words(Scaling, "Who moves numbers inside their ranges."),
    }
    return section("One stage.", own, "fleets")


def _told(schema: Schema, section_name: str = "") -> Schema:
    """The same with a sentence and an example for each key that has none of its own."""
    found = {**schema}
    if "properties" in schema:
        found["properties"] = {key: _told_key(below, section_name, key) for key, below in schema["properties"].items()}
    for word in ("anyOf", "oneOf"):
        if word in schema:
            found[word] = [_told(below, section_name) for below in schema[word]]
    if isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = _told(schema["additionalProperties"], "stage" if section_name == "stages" else section_name)
    return found


def _told_key(schema: Schema, section_name: str, key: str) -> Schema:
    within = "faults" if section_name == "simulated-faults" else section_name
    below = _told(schema, within if within == "faults" else key)
    about = ABOUT.get(f"{within}.{key}") or ABOUT.get(key)
    if about is None:
        return below
    sentence, example = about
    told: Schema = {"description": sentence}
    if below.get("type") != "object" and below.get("type") != "array" and "enum" not in below:
        told["examples"] = [example]
    return {**told, **below}


def spec_schema() -> Schema:
    """The whole document, JSON Schema 2020-12."""
    stages = {"type": "object", "minProperties": 1, "propertyNames": _NAME, "additionalProperties": _stage()}
    whole = section(
        "A release of a model, and the stages that it is rolled out to in this order.",
        {"release": _release(), "stages": stages, "alarms": _alarms(may_switch_off=False)},
        "release",
        "stages",
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "denv.yaml", **_told(whole)}
