"""API keys of a stage's clients: made, taken back, and whether requests need one. Routers get them with their table."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from denvweb.core import wire
from denvweb.core.errors import InvalidError, NotFoundError
from denvweb.core.ids import new_credential
from fleets.domain.allowance import Allowance
from fleets.domain.protocol import ApiKey
from fleets.domain.views import NewApiKey
from fleets.models import RouteState
from fleets.selectors.keys import key_view, keys_of
from fleets.services.routing import routes_changed, stage_lock
from metrics.services import event_append

CLIENT_LENGTH_MAX = 80
LIMIT_MAX = 10**12
KEYS_MAX = 1000  # a stage; every router holds them all, and each change of one sends all of them


@transaction.atomic
def key_create(
    *, stage: str, client: str, allowance: Allowance, expires_at: datetime | None = None, actor: str, via: str = "system"
) -> NewApiKey:
    """A key for a client, shown this once. From a stage's first key on, its routers refuse requests without one."""
    state = _lock(stage)
    client = client.strip()
    if not 0 < len(client) <= CLIENT_LENGTH_MAX:
        problem = f"must be 1 to {CLIENT_LENGTH_MAX} characters"
        raise InvalidError(f"The client's name {problem}.", code="bad-client-name", fields={"client": [problem]})
    _allowance_check(allowance)
    keys = keys_of(state)
    if len(keys) >= KEYS_MAX:
        raise InvalidError(f"{stage} has {KEYS_MAX} API keys already; revoke one that is not used.", code="too-many-keys")
    credential = new_credential("key")
    made = ApiKey(credential.id, client, credential.secret_hash, allowance, expires_at.timestamp() if expires_at else None)
    first = not state.keys_required
    _save(state, (*keys, made), required=True)
    aside = "; requests without a key are refused from now on" if first else ""
    _said(stage, "api-key.created", f"{actor} made API key {made.id} for {client} on {stage}{aside}", actor, via)
    return NewApiKey(credential.text, key_view(made))


@transaction.atomic
def key_revoke(*, stage: str, key: str, actor: str, via: str = "system") -> None:
    """Take a key back: routers refuse it as soon as they have the new table. Without any key left, every request is refused."""
    state = _lock(stage)
    keys = keys_of(state)
    row = next((held for held in keys if held.id == key), None)
    if row is None:
        raise NotFoundError(f"{stage} has no API key {key}; `denv key list {stage}` shows them.", code="key-unknown")
    _save(state, tuple(held for held in keys if held.id != key), required=state.keys_required)
    _said(stage, "api-key.revoked", f"{actor} revoked API key {key} of {row.client} on {stage}", actor, via)


@transaction.atomic
def keys_require(*, stage: str, required: bool, actor: str, via: str = "system") -> None:
    """Have routers refuse requests without a key, or take them all."""
    state = _lock(stage)
    if state.keys_required == required:
        return
    _save(state, keys_of(state), required=required)
    what = "refuses requests without an API key" if required else "takes requests without an API key"
    _said(stage, "api-key.required" if required else "api-key.open", f"{stage} {what} from now on", actor, via)


def _allowance_check(allowance: Allowance) -> None:
    wrong = {
        f"allowance.{name}": ["must be a number from 0 (no limit) to 1e12"]
        for name in ("requests_per_min", "tokens_per_min", "at_once")
        if not 0 <= getattr(allowance, name) <= LIMIT_MAX
    }
    if wrong:
        raise InvalidError("The allowance cannot be used: a limit is 0 (none) to 1e12.", code="bad-allowance", fields=wrong)


def _lock(stage: str) -> RouteState:
    if not RouteState.objects.filter(stage=stage).exists():
        raise NotFoundError(f"Stage {stage} has no routes yet; release something to it first.", code="stage-unknown")
    return stage_lock(stage=stage)


def _save(state: RouteState, keys: tuple[ApiKey, ...], *, required: bool) -> None:
    state.keys, state.keys_required = wire.to_plain(keys), required
    routes_changed(state)
    state.save(update_fields=["keys", "keys_required", "digest", "generation"])


def _said(stage: str, kind: str, sentence: str, actor: str, via: str) -> None:
    event_append(kind=kind, sentence=sentence, actor=actor, via=via, stage=stage, model=stage.partition("/")[0])
