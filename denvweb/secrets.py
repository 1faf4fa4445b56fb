"""Secrets of other systems, encrypted before they reach the database, so that a dump of it gives none away."""

from __future__ import annotations

import base64
import hashlib
import hmac
from functools import cache
from typing import TYPE_CHECKING

from django.conf import settings

from denvweb.core.errors import UnavailableError

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet


def seal(text: str) -> str:
    """Encrypted under the installation's present secret key."""
    return _fernet(_keys()).encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    """The text; UnavailableError when it was encrypted under a key that the installation no longer has."""
    from cryptography.fernet import InvalidToken

    try:
        return _fernet(_keys()).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise UnavailableError(
            "A stored secret cannot be read: DENV_SECRET_KEY has changed. Put the old key into DENV_SECRET_KEY_OLD, or store it anew.",
            code="secret-unreadable",
        ) from None


def _keys() -> tuple[str, ...]:
    return (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)


@cache
def _fernet(keys: tuple[str, ...]) -> MultiFernet:
    from cryptography.fernet import Fernet, MultiFernet  # 10 MB, which only who sends or stores a secret needs

    return MultiFernet([Fernet(base64.urlsafe_b64encode(_derive(key))) for key in keys])


def _derive(key: str) -> bytes:
    """A key of its own for this purpose: Django's signatures are made with the same secret."""
    return hmac.digest(key.encode(), b"denv: secrets at rest, version 1", hashlib.sha256)
