"""Where notices go: made, switched and removed by administrators."""

from __future__ import annotations

import base64
import re
import secrets
from urllib.parse import urlsplit

from django.db import IntegrityError, transaction

from denvweb.core.errors import ConflictError, InvalidError, NotFoundError
from denvweb.core.ids import random_id
from denvweb.secrets import seal
from metrics.models import Channel
from metrics.services.journal import event_append

_SLACK = re.compile(r"[CGD][A-Z0-9]{8,20}")


def channel_create(*, kind: str, name: str, address: str, allow_private: bool = False, actor: str, via: str) -> tuple[str, str]:
    """Its id, and the secret that a webhook's calls will be signed with (shown this once; empty for Slack)."""
    _check(kind, address)
    key = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode() if kind == Channel.Kind.WEBHOOK else ""
    row = Channel(
        id=random_id("ch"),
        kind=kind,
        name=name,
        address=address,
        allow_private=allow_private,
        secret=seal(key) if key else "",
        created_by=actor,
    )
    with transaction.atomic():
        try:
            with transaction.atomic():
                row.save(force_insert=True)
        except IntegrityError:
            raise ConflictError(f"There is a channel named {name} already.", code="channel-exists") from None
        event_append(kind="channel.created", sentence=f"{actor} has notices sent to {kind} {name}, {address}", actor=actor, via=via)
    return row.pk, key


def _check(kind: str, address: str) -> None:
    if kind == Channel.Kind.SLACK:
        if not _SLACK.fullmatch(address):
            raise InvalidError("A Slack channel is named by its id, such as C0123456789.", fields={"address": ["is no id of a channel"]})
        return
    parts = urlsplit(address)
    if parts.scheme != "https" or not parts.hostname or parts.username is not None or not address.isascii() or " " in address:
        raise InvalidError("A webhook is an https:// address without a user in it.", fields={"address": ["is no plain https address"]})
    try:
        _ = parts.port
    except ValueError:
        raise InvalidError("The address has a port that is none.", fields={"address": ["has no valid port"]}) from None


def channel_switch(*, id: str, enabled: bool, actor: str, via: str) -> None:
    """Have notices sent, or no longer written, for a channel."""
    with transaction.atomic():
        row = Channel.objects.select_for_update(no_key=True).filter(pk=id).first()
        if row is None:
            raise NotFoundError(f"There is no channel {id}.")
        if row.enabled != enabled:
            Channel.objects.filter(pk=id).update(enabled=enabled)
            what = "has notices sent again to" if enabled else "stopped notices to"
            event_append(kind="channel.switched", sentence=f"{actor} {what} {row.kind} {row.name}", actor=actor, via=via)


def channel_delete(*, id: str, actor: str, via: str) -> None:
    """Remove a channel, with what was still to be sent to it."""
    with transaction.atomic():
        row = Channel.objects.filter(pk=id).first()
        if row is None:
            raise NotFoundError(f"There is no channel {id}.")
        row.delete()
        event_append(kind="channel.deleted", sentence=f"{actor} removed {row.kind} {row.name}, {row.address}", actor=actor, via=via)
