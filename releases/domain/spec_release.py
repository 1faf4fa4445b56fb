"""The `release` section."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from fleets.domain.types import Faults, Role
from releases.domain.source import Node
from releases.domain.spec_reader import Section, Wrong, duration, name, number, ratio, shown, size, text, truth, whole
from releases.domain.spec_topology import read_topology
from releases.domain.spec_types import KvCacheSpec, ReleaseSpec, Topology

T = TypeVar("T")

_OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_RECIPE = re.compile(r"[a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*@\d{1,6}")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_WEIGHTS = re.compile(r"hf://[^/\s@]+/[^/\s@]+(@\S+)?|file:///[^\s@]+(@\S+)?")
_read_text = text("a text")
_BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def read_release(section: Section) -> ReleaseSpec | None:
    """The release, or None after a mistake that leaves no release."""
    model = section.take("model", name("a model name"), "", missing="this is missing; say what clients ask for by name")
    weights = section.take("weights", _weights, "", missing="this is missing; write hf://org/name@revision or file:///path@digest")
    recipe = section.take("recipe", _recipe, "", missing="this is missing; write name/engine@version, as `denv recipes` lists them")
    topology = _topology(section)
    kv_cache = _kv_cache(section.section("kv-cache"))
    options = _by_role(section.section("engine"), _options)
    faults = _by_role(section.section("simulated-faults"), _faults)
    secrets = _secrets(section.section("secrets"))
    section.finish()
    return ReleaseSpec(model, weights, recipe, topology, kv_cache, options, faults, secrets) if topology else None


def _topology(section: Section) -> Topology | None:
    below = section.section("topology", missing="this section is missing; it says how many GPUs and replicas each pool has")
    return read_topology(below) if below else None


def _weights(node: Node) -> str | Wrong:
    value = _read_text(node)
    if isinstance(value, str) and _WEIGHTS.fullmatch(value):
        return value
    return Wrong(f"{shown(node)} is not where weights are; write hf://org/name@revision or file:///path@digest")


def _recipe(node: Node) -> str | Wrong:
    value = _read_text(node)
    if isinstance(value, str) and _RECIPE.fullmatch(value):
        return value
    return Wrong(f"{shown(node)} is not a recipe; write name/engine@version, such as deepseek-v4.1-flash/deepinfer@3")


def _block(node: Node) -> int | Wrong:
    value = whole("a block size in tokens", 1, 256)(node)
    if isinstance(value, Wrong) or value in _BLOCKS:
        return value
    return Wrong(f"{value} is not a block size in tokens; it must be a power of two, such as 64")


def _kv_cache(section: Section | None) -> KvCacheSpec:
    if section is None:
        return KvCacheSpec()
    spec = KvCacheSpec(
        dtype=section.take("dtype", text("a data type"), None),
        block_tokens=section.take("block-size", _block, None),
        prefix_caching=section.take("prefix-caching", truth, None),
        offload_bytes=section.take("offload", size, None),
        events=section.take("events", truth, None),
    )
    section.finish()
    return spec


def _by_role(section: Section | None, read: Callable[[Section], T]) -> dict[Role, T]:
    """A section with one further section a role."""
    if section is None:
        return {}
    below = {role: section.section(role.value) for role in Role}
    section.finish()
    return {role: read(part) for role, part in below.items() if part is not None}


def _options(section: Section) -> dict[str, str]:
    """Engine flags by name; which there are is the recipe's business."""
    options = {}
    for entry in section.entries():
        options[entry.key] = section.take(entry.key, _read_text, "")
        if not _OPTION.fullmatch(entry.key):
            section.fail(entry.place, entry.key, "not an option name; write it as the engine does, without the dashes before it")
    return options


def _secrets(section: Section | None) -> dict[str, str]:
    """`HF_TOKEN: hf-read`: the engines' variable, and the name of the stored secret that it holds. Never the value."""
    secrets = {}
    for entry in section.entries() if section is not None else ():
        assert section is not None
        secrets[entry.key] = section.take(entry.key, name("the name of a secret"), "")
        if not VARIABLE.fullmatch(entry.key) or entry.key.startswith("DENV_"):
            section.fail(entry.place, entry.key, "not a variable that an engine may be given; write it in capitals, as HF_TOKEN")
    return secrets


def _faults(section: Section) -> Faults:
    """Faults of the simulated engine; `slow-factor: 3` makes every step take three times as long."""
    faults = Faults(
        slow_factor=section.take("slow-factor", number("a factor", 0.01, 1000), 1.0),
        error_ratio=section.take("error-ratio", _share, 0.0),
        hang_ratio=section.take("hang-ratio", _share, 0.0),
        crash_after_requests=section.take("crash-after-requests", whole("a number of requests", 1, 100_000_000), None),
        kv_fail_ratio=section.take("kv-fail-ratio", _share, 0.0),
        kv_corrupt=section.take("kv-corrupt", truth, False),
        start_delay_s=section.take("start-delay", duration, 0.0),
    )
    section.finish()
    return faults


def _share(node: Node) -> float | Wrong:
    """A share of all requests: `5%` or `0.05`."""
    percent = shown(node).endswith("%")
    return ratio(node) if percent else number("a share of the requests", 0, 1)(node)
