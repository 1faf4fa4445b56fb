"""What differs between two releases: as text, value by value in the user's words, and by pool."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from fleets.domain.types import EngineSpec, PoolSpec, UnitSpec
from releases.domain.plan_words import changed
from releases.domain.source import Items, Node, Scalar, SpecError, read
from releases.domain.views import ChangeView


def unified(before: str, after: str, before_name: str, after_name: str) -> str:
    """A unified diff of two files, three lines of context."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), before_name, after_name, lineterm="")
    return "\n".join(lines)


def changes(before: str, after: str) -> tuple[ChangeView, ...]:
    """Every value that differs, by dotted path, in the order of the newer file; what only the older has comes last."""
    old, new = _leaves_of(before), _leaves_of(after)
    paths = [*new, *(path for path in old if path not in new)]
    return tuple(ChangeView(path, old.get(path, ""), new.get(path, "")) for path in paths if old.get(path) != new.get(path))


def touches(old: UnitSpec | None, new: UnitSpec) -> str:
    """Which pools change and in what: `decode only (speculative-draft-length 2 -> 3)`."""
    if old is None:
        return changed(None, new)
    what = dict.fromkeys(part for pool in new.pools for part in _pool_changes(_same_role(old, pool), pool))  # each once, in order
    shown = list(what)[:4] + ([f"and {len(what) - 4} more"] if len(what) > 4 else [])
    if not shown and old.compat == new.compat:
        return "nothing that runs: the stage's settings only"
    return f"{changed(old, new)} ({', '.join(shown)})" if shown else changed(old, new)


def _leaves_of(text: str) -> dict[str, str]:
    tree = read(text)
    return {} if isinstance(tree, SpecError) else dict(_leaves(tree, ""))


def _leaves(node: Node, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, Scalar):
        yield path, node.text
    elif isinstance(node, Items):
        simple = [item.text for item in node.items if isinstance(item, Scalar)]
        yield path, f"[{', '.join(simple)}]"
    else:
        for entry in node.entries:
            yield from _leaves(entry.value, f"{path}.{entry.key}" if path else entry.key)


def _same_role(unit: UnitSpec, pool: PoolSpec) -> PoolSpec | None:
    return next((other for other in unit.pools if other.role is pool.role), None)


def _pool_changes(old: PoolSpec | None, new: PoolSpec) -> Iterator[str]:
    if old is None:
        yield f"{new.role.value} is new"
        return
    if old.replicas != new.replicas:
        yield f"{new.role.value} replicas {old.replicas} -> {new.replicas}"
    if old.gpus != new.gpus:
        yield f"{new.role.value} GPUs {old.gpus} -> {new.gpus}"
    yield from _engine_changes(old.engine, new.engine)


def _engine_changes(old: EngineSpec, new: EngineSpec) -> Iterator[str]:
    """Without the role's name: the sentence around it says which pools are touched."""
    named = (
        ("recipe", old.recipe, new.recipe),
        ("weights", old.weights, new.weights),
        ("KV dtype", old.kv_dtype, new.kv_dtype),
        ("block size", old.block_tokens, new.block_tokens),
        ("prefix caching", old.prefix_caching, new.prefix_caching),
    )
    yield from (f"{name} {_arrow(str(before), str(after))}" for name, before, after in named if before != after)
    yield from _option_changes(old.options, new.options)
    if old.faults != new.faults:
        yield "simulated faults"
    if old.secrets != new.secrets:
        yield from _option_changes(old.secrets, new.secrets)


def _arrow(before: str, after: str) -> str:
    """`c41a7e2 -> 77b01aa`: two names without what they have in common up to an `@` or `/`."""
    for mark in ("@", "/"):
        head, found, tail = before.rpartition(mark)
        if found and after.startswith(head + mark):
            return f"{tail} -> {after.removeprefix(head + mark)}"
    return f"{before} -> {after}"


def _option_changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            yield f"{key} {old.get(key, 'unset')} -> {new.get(key, 'unset')}"
