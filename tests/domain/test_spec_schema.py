"""The schema that editors use and the reader of spec files know the same keys, and agree about whole files."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from releases.domain.spec import ReleaseFile, parse
from releases.domain.spec_schema import Schema, spec_schema
from releases.domain.spec_types import ReleaseSpec, StageSpec
from tests.domain.releases_world import DS_FLASH

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples").glob("*.yaml"))
FULL: dict[str, Any] = {
    "release": {
        "model": "ds-flash",
        "weights": "hf://deepseek-ai/DeepSeek@c41a7e2",
        "recipe": "deepseek-v4.1-flash/deepinfer@3",
        "topology": {"prefill": {"gpus": 4, "replicas": {"min": 1, "max": 3}}, "decode": {"gpus": 64}, "conditional": {}},
        "kv-cache": {},
        "engine": {"decode": {}},
        "simulated-faults": {"decode": {}},
        "secrets": {"HF_TOKEN": "hf-read"},
    },
    "alarms": {"error-rate": "1%"},
    "stages": {
        "prod": {
            "fleets": ["gb200-use1"],
            "topology": {"decode": {"gpus": 32}},
            "alarms": {"ttft-p99": {"max": "1500ms", "over-baseline": "25%"}},
            "rollout": {"canary": "10%", "steps": ["50%", "100%"], "probe": {"prompts": ["hello"]}},
        }
    },
}


@pytest.fixture(scope="module")
def schema() -> Schema:
    found = spec_schema()
    Draft202012Validator.check_schema(found)
    return found


def problems(schema: Schema, value: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(value)]


def test_a_field_that_is_new_in_the_types_has_a_key(schema: Schema) -> None:
    release, stage = schema["properties"]["release"]["properties"], schema["properties"]["stages"]["additionalProperties"]["properties"]
    renamed = {"engine-options": "engine", "faults": "simulated-faults"}
    assert {renamed.get(name, name) for name in keys_of(ReleaseSpec)} == release.keys()
    assert keys_of(StageSpec) - {"name", "alarm-specs", "most-replicas"} == stage.keys()


def keys_of(kind: type[Any]) -> set[str]:
    return {found.name.replace("_", "-") for found in dataclasses.fields(kind)}


@pytest.mark.parametrize("text", [DS_FLASH, *(path.read_text() for path in FILES), yaml.safe_dump(FULL)])
def test_files_that_are_read_are_valid(schema: Schema, text: str) -> None:
    assert isinstance(parse(text), ReleaseFile)
    assert problems(schema, yaml.safe_load(text)) == []


def sections(schema: Schema, value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Every closed section that FULL has a place for."""
    if not isinstance(value, dict):
        return
    if schema.get("additionalProperties") is False:
        yield at, schema
    for key, below in value.items():
        found = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
        if isinstance(found, dict):
            yield from sections(found, below, (*at, key))


def mistakes(value: Any) -> str:
    found = parse(yaml.safe_dump(value))
    return "" if isinstance(found, ReleaseFile) else "\n".join(error.text() for error in found)


def test_each_key_of_the_schema_is_one_that_the_reader_takes(schema: Schema) -> None:
    seen = 0
    for at, found in sections(schema, FULL):
        for key in found["properties"]:
            value = copy.deepcopy(FULL)
            below = value
            for step in at:
                below = below[step]
            below.setdefault(key, "nonsense")
            dotted = ".".join((*at, key))
            assert f"{dotted}: not a key here" not in mistakes(value), dotted
            seen += 1
    assert seen > 100


def test_a_key_that_neither_knows_is_refused_by_both(schema: Schema) -> None:
    for at, _ in sections(schema, FULL):
        value = copy.deepcopy(FULL)
        below = value
        for step in at:
            below = below[step]
        below["nonsense"] = "1"
        assert mistakes(value), at
        assert problems(schema, value), at


@pytest.mark.parametrize(
    "wrong",
    [
        {"release.topology.mode": "both"},
        {"release.recipe": "nothing"},
        {"release.weights": "s3://x"},
        {"stages.prod.rollout.approve": "me"},
        {"stages.prod.rollout.hold": "soon"},
        {"stages.prod.fleets": []},
        {"release.topology.prefill.gpus": 0},
        {"release.kv-cache.block-size": 60},
        {"stages.prod.scaling": "sometimes"},
    ],
)
def test_plain_mistakes_are_seen_by_both(schema: Schema, wrong: dict[str, Any]) -> None:
    value = copy.deepcopy(FULL)
    for dotted, bad in wrong.items():
        *path, last = dotted.split(".")
        below = value
        for step in path:
            below = below[step]
        below[last] = bad
    assert mistakes(value)
    assert problems(schema, value)


def keys(schema: Schema, at: tuple[str, ...] = ()) -> Iterator[tuple[str, Schema]]:
    """Every key of the schema, however deep, with what is said of it."""
    for key, below in schema.get("properties", {}).items():
        yield ".".join((*at, key)), below
        yield from keys(below, (*at, key))
    below = schema.get("additionalProperties")
    if isinstance(below, dict):
        yield from keys(below, (*at, "*"))
    for one in schema.get("anyOf", ()):
        yield from keys(one, at)


def test_an_editor_is_told_what_each_key_means_and_how_its_value_looks(schema: Schema) -> None:
    seen = 0
    for dotted, found in keys(schema):
        assert found.get("description", "").endswith("."), dotted
        told = any(word in found for word in ("examples", "enum", "properties")) or found.get("type") in ("object", "boolean")
        assert told, f"{dotted} has no example"
        for example in found.get("examples", ()) if found.get("type") != "object" else ():
            assert not list(Draft202012Validator(found).iter_errors(example)), (dotted, example)
        seen += 1
    assert seen > 200


# What the reader has to say of values together, or by numbers that the schema does not have.
_BETWEEN_VALUES = {
    ("release.topology.gpus", 5),  # is for units without pools
    ("release.topology.replicas", 5),
    ("stages.prod.topology.gpus", 5),
    ("stages.prod.topology.replicas", 5),
    *((f"{at}.topology.replicas", '{"min": 1, "max": 2}') for at in ("release", "stages.prod")),
    ("stages.prod.topology.aggregated", "{}"),
    *(("stages.prod.rollout.probe.prompts", word) for word in ("nonsense!", "10m", "10%", "256GiB", "2/s")),  # names of files
    ("release.model", 5),  # a bare number is a name to the reader, and a number to editors
    ("release.model", 2.5),
    ("release.model", 0.001),
    ("release.model", True),
}
_SHAPES: tuple[Any, ...] = (
    *({}, [], "nonsense!", -1, 0.001, 2.5, 5, True, None, "10m", "10%", "256GiB", "2/s", ["x", {}]),
    *({"min": 1, "max": 2}, {"max": "10%"}),
)


def test_values_of_another_shape_are_refused_by_both_or_taken_by_both(schema: Schema) -> None:
    validator, differing, seen = Draft202012Validator(schema), set(), 0
    for at, found in sections(schema, FULL):
        for key in found["properties"]:
            if at[-1:] == ("alarms",) and key not in ("ttft-p99", "error-rate", "kv-effective", "prefill-queue"):
                continue  # the others have the forms of these
            for shape in _SHAPES:
                value = copy.deepcopy(FULL)
                below = value
                for step in at:
                    below = below[step]
                below[key] = shape
                read = isinstance(parse(json.dumps(value)), ReleaseFile)
                if read != validator.is_valid(value):
                    differing.add((".".join((*at, key)), json.dumps(shape) if isinstance(shape, (dict, list)) else shape))
                seen += 1
    assert differing <= _BETWEEN_VALUES, differing - _BETWEEN_VALUES
    assert seen > 800
