"""The names that the control plane knows: what a wrong one is compared with, and what shells complete."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from denvweb.cli.client import Client, find_access
from denvweb.core import words
from denvweb.core.errors import DenvError

F = TypeVar("F", bound=Callable[..., Any])

_WAIT_S = 1.0  # somebody has pressed Tab, or made a slip: late help is none
# What is listed where, and under which key.
_LISTS: Mapping[str, tuple[str, str]] = {
    "stage": ("stages", "stage"),
    "model": ("stages", "model"),
    "fleet": ("fleets", "fleet"),
    "node": ("nodes", "node"),
    "recipe": ("recipes", "recipe"),
    "secret": ("secrets", "name"),
}
# Which kind of name is in a path of the API.
_IN_PATH = (
    (re.compile(r"stages/([^/]+/[^/]+)"), "stage"),
    (re.compile(r"models/([^/]+)"), "model"),
    (re.compile(r"nodes/([^/]+)"), "node"),
    (re.compile(r"fleets/([^/]+)"), "fleet"),
    (re.compile(r"secrets/([^/]+)"), "secret"),
)


def known(kind: str) -> list[str]:
    """Names of this kind that the caller may see; none when the control plane is away or slow. Never raises."""
    path, key = _LISTS[kind]
    try:
        rows = Client(find_access(), timeout_s=_WAIT_S).get(path, dict[str, Any], limit=500)["results"]
        return sorted({str(row[key]) for row in rows})
    except (DenvError, KeyError, TypeError):
        return []


def meant(kind: str, name: str) -> str:
    """`Did you mean `x`?` with the nearest name of this kind; empty when the name is right, or none is near."""
    names = known(kind)
    return "" if name in names else words.meant(name, names)


def meant_in_path(path: str, params: Mapping[str, object]) -> str:
    """The same for the names in a path and the query of the API that were not found."""
    for pattern, kind in _IN_PATH:
        if (match := pattern.match(path)) and (hint := meant(kind, match[1])):
            return hint
    return next((hint for kind in _LISTS if (name := params.get(kind)) and (hint := meant(kind, str(name)))), "")


def none_fits(noun: str, **filters: object) -> str:
    """`No node fits.`, with the name that was meant where a filter names what there is none of."""
    hints = (meant(kind, str(name)) for kind, name in filters.items() if name)
    return f"No {noun} fits. {next((hint for hint in hints if hint), '')}".rstrip()


def completes(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """What a parameter of this kind is completed with."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in known(kind) if name.startswith(incomplete)]

    return complete


def name_argument(kind: str, name: str = "", **more: Any) -> Callable[[F], F]:
    """An argument that names a stage (MODEL/STAGE), a model, a fleet or a node, and is completed with those that there are."""
    metavar = {"stage": "MODEL/STAGE"}.get(kind, kind.upper())
    return click.argument(name or kind, shell_complete=completes(kind), **{"metavar": metavar, **more})


def name_option(kind: str, *flags: str, **more: Any) -> Callable[[F], F]:
    """The same as an option."""
    return click.option(*(flags or (f"--{kind}",)), shell_complete=completes(kind), **{"default": "", **more})
