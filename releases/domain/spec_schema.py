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
from metrics.domain.alarm_text import ALARM_NAMES
from releases.domain.spec_types import Approval, KvCacheSpec, Mode, ProbePolicy, RolloutPolicy, Scaling

Schema = dict[str, Any]

URL = "/api/v1/schema/denv.yaml"
_DURATION: Schema = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|min|h|d)$"}],
    "examples": ["10m"],
}
_SHARE: Schema = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^\d+(\.\d+)?\s*%$"}],
    "examples": ["10%"],
}
_SIZE: Schema = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\d+(\.\d+)?\s*[KMGTP]?i?B?$"}],
    "examples": ["256GiB"],
}
_NAME: Schema = {"type": "string", "pattern": r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"}
_COUNT: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {
            "type": "object",
            "properties": {"min": {"type": "integer", "minimum": 1}, "max": {"type": "integer", "minimum": 1}},
            "required": ["min", "max"],
            "additionalProperties": False,
        },
    ],
    "examples": [2, {"min": 1, "max": 3}],
}
_LIMIT: Schema = {"type": ["string", "number"], "examples": ["1500ms", "1%"]}
_TEXT: Schema = {"type": ["string", "number", "boolean"]}
# What a unit at the end of a field's name means in the file: the file writes the unit with the value, and not with the key.
_UNITS = {"_s": _DURATION, "_ratio": _SHARE, "_bytes": _SIZE}
_KINDS: Mapping[str, Schema] = {
    "bool": {"type": "boolean"},
    "int": {"type": "integer", "minimum": 0},
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


_KEYS = {(KvCacheSpec, "block_tokens"): "block-size", (ProbePolicy, "per_s"): "rate"}
_BLOCKS = {"enum": [2**power for power in range(9)], "description": "tokens of one block"}


def _by_role(about: str, of_role: Schema) -> Schema:
    return section(about, {role.value: of_role for role in Role})


def _topology() -> Schema:
    pool = section(
        "One pool of a unit", {"gpus": {"type": "integer", "minimum": 1, "description": "GPUs of one replica"}, "replicas": _COUNT}
    )
    conditional = of_fields(ConditionalPolicy, "When decode does its own prefill")
    return section(
        "The shape of one serving unit",
        {
            "mode": words(Mode, "Whether prefill and decode are pools of their own"),
            "prefill": pool,
            "decode": pool,
            "aggregated": pool,
            **pool["properties"],  # of an aggregated unit, written without a section of its own
            "placement": words(PlacementRule, "Whether all of a unit is in one domain; `any` only where that was measured"),
            "conditional": conditional,
        },
    )


def _alarms(*, may_switch_off: bool) -> Schema:
    """Limits by alarm; in a stage a line of the model's may be switched off."""
    two = {
        "type": "object",
        "properties": {"max": _LIMIT, "min": _LIMIT, "over-baseline": {**_SHARE, "examples": ["25%"]}},
        "additionalProperties": False,
        "minProperties": 1,
    }
    off = [{"const": "off"}, {"const": False}] if may_switch_off else []  # YAML 1.1 editors read a bare off as false
    return section(
        "Limits that a rollout must keep, and a stage between rollouts", {name: {"anyOf": [_LIMIT, two, *off]} for name in ALARM_NAMES}
    )


def _release() -> Schema:
    own: dict[str, Schema] = {
        "model": {**_NAME, "description": "What clients ask for by name"},
        "weights": {
            "type": "string",
            "pattern": r"^(hf://[^/\s@]+/[^/\s@]+(@\S+)?|file:///[^\s@]+(@\S+)?)$",
            "description": "hf://org/name@revision or file:///path@digest",
        },
        "recipe": {
            "type": "string",
            "pattern": r"^[a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*@\d{1,6}$",
            "description": "As `denv recipes` lists them",
        },
        "topology": _topology(),
        "kv-cache": of_fields(KvCacheSpec, "The KV cache; what is not written is the recipe's", block_tokens=_BLOCKS),
        "engine": _by_role("Engine flags by role, over the recipe's", {"type": "object", "additionalProperties": _TEXT}),
        "simulated-faults": _by_role("Faults of the simulated engine", of_fields(Faults, "Faults of one role")),
        "secrets": {"type": "object", "propertyNames": {"pattern": "^[A-Z][A-Z0-9_]{0,63}$"}, "additionalProperties": _NAME},
    }
    return section("What should run", own, "model", "weights", "recipe", "topology")


def _stage() -> Schema:
    rate = {"type": ["number", "string"], "examples": ["2/s"]}
    prompts = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    probe = of_fields(ProbePolicy, "Requests that denv makes where users make too few", per_s=rate, prompts=prompts)
    steps = {"type": "array", "items": _SHARE, "minItems": 1, "examples": [["50%", "100%"]]}
    approve = words(Approval, "Who lets a rollout pass its canary")
    own: dict[str, Schema] = {
        "fleets": {"type": "array", "items": _NAME, "minItems": 1, "uniqueItems": True, "description": "Where it may run, in this order"},
        "replicas": {**_COUNT, "description": "Serving units"},
        "topology": _topology(),
        "alarms": _alarms(may_switch_off=True),
        "rollout": of_fields(RolloutPolicy, "How it is rolled out", steps=steps, approve=approve, probe=probe),
        "scaling": words(Scaling, "Who moves numbers inside their ranges"),
    }
    return section("One stage", own, "fleets")


def spec_schema() -> Schema:
    """The whole document, JSON Schema 2020-12."""
    stages = {"type": "object", "minProperties": 1, "propertyNames": _NAME, "additionalProperties": _stage()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "denv.yaml",
        **section(
            "A release of a model, and the stages that it is rolled out to in this order",
            {"release": _release(), "stages": stages, "alarms": _alarms(may_switch_off=False)},
            "release",
            "stages",
        ),
    }
