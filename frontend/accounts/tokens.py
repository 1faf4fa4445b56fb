"""API tokens: made, listed and taken back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from denvweb.auth import token_create
from denvweb.core.errors import ForbiddenError, NotFoundError
from denvweb.models import ApiToken
from metrics.services import event_append


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token that is good; its secret is not kept."""

    id: str
    user: str
    name: str
    scope: str
    created_at: datetime
    expires_at: datetime | None


def tokens_of(user: User) -> tuple[TokenView, ...]:
    """Tokens that the person may see and take back, newest first: one's own; an administrator's are everybody's."""
    return tuple(
        TokenView(row.pk, row.user.get_username(), row.label, row.scope, row.created_at, row.expires_at)
        for row in _rows(user).order_by("-created_at", "pk")
    )


def token_make(*, user: User, scope: str = "api", name: str = "", days: int | None = None, via: str) -> str:
    """The text of a new token that acts for the person, shown this once; it ends after `days`. A router's needs an administrator."""
    if scope == ApiToken.Scope.ROUTER and not user.is_superuser:
        raise ForbiddenError("Only an administrator may make a router's token.")
    expires_at = timezone.now() + timedelta(days=days) if days else None
    with transaction.atomic():
        text = token_create(user=user, scope=scope, label=name, expires_at=expires_at)
        sentence = f"{user.get_username()} made token {text.partition('.')[0]} ({name or scope})"
        event_append(kind="token.created", sentence=sentence, actor=user.get_username(), via=via)
    return text


def token_revoke(*, id: str, user: User, via: str) -> None:
    """Take a token back; it is good for nothing from now on, a router's within ten seconds."""
    actor = user.get_username()
    with transaction.atomic():
        row = _rows(user).filter(pk=id).first()
        if row is None:
            raise NotFoundError("There is no such token.")
        ApiToken.objects.filter(pk=row.pk).update(revoked_at=timezone.now())
        sentence = f"{actor} revoked token {row.pk} ({row.label or row.scope}) of {row.user.get_username()}"
        event_append(kind="token.revoked", sentence=sentence, actor=actor, via=via)


def _rows(user: User) -> QuerySet[ApiToken]:
    rows = ApiToken.objects.select_related("user").filter(revoked_at=None).exclude(expires_at__lte=timezone.now())
    return rows if user.is_superuser else rows.filter(user=user)
