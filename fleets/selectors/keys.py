"""API keys as they may be shown: without what would prove them."""

from __future__ import annotations

from datetime import UTC, datetime

from denvweb.core import wire
from fleets.domain.protocol import ApiKey
from fleets.domain.views import ApiKeys, ApiKeyView
from fleets.models import RouteState


def keys_of(state: RouteState) -> tuple[ApiKey, ...]:
    """The keys of a stage, as its routers get them."""
    return wire.from_plain(state.keys, tuple[ApiKey, ...])


def key_view(key: ApiKey) -> ApiKeyView:
    """One key for people."""
    expires_at = datetime.fromtimestamp(key.expires_at, UTC) if key.expires_at is not None else None
    return ApiKeyView(key.id, key.client, key.allowance, expires_at)


def keys_view(*, stage: str) -> ApiKeys:
    """The keys of a stage by client; none for a stage without routes."""
    state = RouteState.objects.filter(stage=stage).first()
    if state is None:
        return ApiKeys(stage, False, ())
    views = sorted((key_view(key) for key in keys_of(state)), key=lambda view: (view.client, view.id))
    return ApiKeys(stage, state.keys_required, tuple(views))
