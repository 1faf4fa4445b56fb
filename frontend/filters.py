"""Filters of a page's list. They live in its address, so that a list can be sent to somebody else, and refreshed as it is."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from django.http import HttpRequest, QueryDict

_LONGEST = 200
_LOCAL = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")


class Filter(dict[str, str]):
    """What of a list is shown, by name; an empty text filters nothing."""

    @property
    def query(self) -> str:
        """The address's part; empty when nothing is filtered."""
        found = QueryDict(mutable=True)
        found.update({name: value for name, value in self.items() if value})
        return found.urlencode()


def read(request: HttpRequest, allowed: Mapping[str, Collection[str] | None]) -> Filter:
    """The filter of an address: each name with its words, or None for any text. A word that there is not filters nothing."""
    asked = {name: request.GET.get(name, "").strip().replace("\0", "")[:_LONGEST] for name in allowed}
    return Filter({name: value if (words := allowed[name]) is None or value in words else "" for name, value in asked.items()})


def moment(text: str) -> datetime | None:
    """What `<input type=datetime-local>` sends; the page says that it is UTC. None for anything else."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC) if _LOCAL.fullmatch(text) else None
    except ValueError:
        return None
