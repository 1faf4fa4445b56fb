"""What commands that print lists share: how many, since when and until when, page after page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from denvweb.core.units import parse_duration_s

F = TypeVar("F", bound=Callable[..., Any])


class Moment(click.ParamType[str]):
    """A time as people write one: `2h` ago, or ISO 8601 (UTC where it names no zone)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """ISO 8601, as the API takes it."""
        try:
            ago_s = parse_duration_s(str(value))
            at = datetime.now(UTC) - timedelta(seconds=ago_s) if ago_s is not None else datetime.fromisoformat(str(value))
        except (ValueError, OverflowError):
            self.fail(f"`{value}` is no time; write it as 2h (ago), 2026-12-01 or 2026-12-01T09:30", param, ctx)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()


def limit_option(default: int) -> Callable[[F], F]:
    """`--limit N`."""
    return click.option("--limit", type=click.IntRange(1), default=default, show_default=True, help="How many, at most.")


def time_options(command: F) -> F:
    """`--since TIME --until TIME`."""
    for option, text in (("--until", "Before this time."), ("--since", "Not before this time: 2h (ago), or 2026-12-01T09:30.")):
        command = click.option(option, type=Moment(), default=None, help=text)(command)
    return command
