"""Secrets that are shown once: kept in the session from the form that makes one to the page that shows it, and no longer."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from frontend.pages.base import PageRequest

_KEY = "denv_shown_once"


@dataclass(frozen=True, slots=True)
class Shown:
    """A secret, and what it is for."""

    what: str
    secret: str


def keep(request: PageRequest, what: str, secret: str) -> None:
    """For the next whole page: the secret is in no message, no address and no log."""
    if secret:
        request.session[_KEY] = asdict(Shown(what, secret))


def take(request: PageRequest) -> Shown | None:
    """What was kept, this once; a part of a page, which may be asked for at any time, takes nothing."""
    found = None if request.htmx else request.session.pop(_KEY, None)
    return Shown(**found) if found else None
