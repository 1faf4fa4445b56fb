"""Names and secrets: short random ids, ids derived from what they stand for, and `id.secret` credentials."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

_ALPHABET = "23456789abcdefghjkmnpqrstvwxyz"  # no characters that are read for one another


def random_id(prefix: str, length: int = 10) -> str:
    """A fresh id such as `tok-7f3k9q2mzx`."""
    return f"{prefix}-" + "".join(secrets.choice(_ALPHABET) for _ in range(length))


def derived_id(prefix: str, *parts: object, length: int = 12) -> str:
    """The same id for the same parts, so that making a thing twice is a no-op."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).hexdigest()
    return f"{prefix}-{digest[:length]}"


@dataclass(frozen=True, slots=True)
class Credential:
    """An `id.secret` pair; only `secret_hash` may be stored."""

    id: str
    secret: str

    @property
    def text(self) -> str:
        """What the owner sends as a bearer token."""
        return f"{self.id}.{self.secret}"

    @property
    def secret_hash(self) -> str:
        """Hex SHA-256 of the secret. The secret has 256 random bits, so a slow hash would add nothing."""
        return hash_secret(self.secret)


def new_credential(prefix: str) -> Credential:
    """A credential nobody has seen before."""
    return Credential(id=random_id(prefix), secret=secrets.token_urlsafe(32))


def parse_credential(text: str) -> Credential | None:
    """Split `id.secret`; None when the text has not that form."""
    head, dot, tail = text.strip().partition(".")
    return Credential(id=head, secret=tail) if dot and head and tail else None


def hash_secret(secret: str) -> str:
    """Hex SHA-256."""
    return hashlib.sha256(secret.encode()).hexdigest()


def secret_matches(secret: str, secret_hash: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(hash_secret(secret), secret_hash)
