"""Sessions of people: where somebody is signed in, and ending it from elsewhere.

Django keeps a session under its secret key, so a session is named here by a hash of that key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from denvweb.core.errors import NotFoundError
from metrics.services import event_append

_FACTS = "denv_signed_in"


@dataclass(frozen=True, slots=True)
class SessionView:
    """One browser that is signed in."""

    id: str
    signed_in_at: datetime | None
    address: str
    agent: str  # what the browser calls itself
    expires_at: datetime
    current: bool  # the one that asks
    how: str = ""  # they signed in: `with a password`, `through ...`


def session_began(request: HttpRequest, *, how: str) -> None:
    """Keep in a new session when, from where, how and with what it began; the journal has it too."""
    request.session[_FACTS] = {
        "at": timezone.now().isoformat(),
        "address": str(request.META.get("REMOTE_ADDR", "")),
        "agent": request.headers.get("User-Agent", "")[:200],
        "how": how,
    }
    actor = request.user.get_username()
    event_append(kind="session.began", sentence=f"{actor} signed in {how}", actor=actor, via="ui")


def session_how(request: HttpRequest) -> str:
    """How this browser's person signed in."""
    return str(request.session.get(_FACTS, {}).get("how", ""))


def sessions_of(user: User, *, current_key: str | None = None) -> tuple[SessionView, ...]:
    """The person's sessions, newest first."""
    found = [_view(session, data, current_key) for session, data in _of(user)]
    return tuple(sorted(found, key=lambda view: (view.current, view.signed_in_at or view.expires_at), reverse=True))


def session_end(*, id: str, user: User, via: str) -> None:
    """Sign a browser out, by the id that `sessions_of` gave. Its socket and stream end at their next look, within seconds."""
    found = next((session for session, _ in _of(user) if _id(session) == id), None)
    if found is None:
        raise NotFoundError("There is no such session; it may have ended already.")
    with transaction.atomic():
        found.delete()
        actor = user.get_username()
        event_append(kind="session.ended", sentence=f"{actor} signed a browser of theirs out", actor=actor, via=via)


def _of(user: User) -> Iterator[tuple[Session, dict[str, Any]]]:
    # Django does not keep whose a session is where a query could see it. They are few, and this page is rarely asked for.
    for session in Session.objects.filter(expire_date__gt=timezone.now()).iterator():
        data = session.get_decoded()
        if data.get(SESSION_KEY) == str(user.pk):
            yield session, data


def _id(session: Session) -> str:
    return hashlib.sha256(session.session_key.encode()).hexdigest()[:16]


def _view(session: Session, data: dict[str, Any], current_key: str | None) -> SessionView:
    facts = data.get(_FACTS, {})
    return SessionView(
        id=_id(session),
        signed_in_at=datetime.fromisoformat(facts["at"]) if "at" in facts else None,
        address=facts.get("address", ""),
        agent=facts.get("agent", ""),
        expires_at=session.expire_date,
        current=session.session_key == current_key,
        how=facts.get("how", ""),
    )
