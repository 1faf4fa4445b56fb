"""Who the provider says somebody is, once its signature and every condition of OpenID Connect Core 1.0, 3.1.3.7, hold."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from denvweb.oidc import OidcConfig
from frontend.oidc.errors import SignInRefusedError

if TYPE_CHECKING:
    from jwt import PyJWK

# Signatures by a key that only the provider has. Never `none`, nor HS256, with which whoever knows a "public" text could sign.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_LEEWAY_S = 30.0  # two clocks
_REQUIRED = ("iss", "sub", "aud", "exp", "iat", "nonce")


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody at the provider. Only issuer and subject name a person for good; all else may change hands."""

    issuer: str
    subject: str
    name: str = ""  # as they would like to be called
    email: str = ""  # in lower case, and empty unless the provider has verified it
    groups: frozenset[str] = frozenset()

    @property
    def words(self) -> str:
        """For the journal."""
        return (self.email or self.name or self.subject)[:150]


def claims_of(token: object, *, config: OidcConfig, nonce: str, key_of: Callable[[object], PyJWK]) -> dict[str, Any]:
    """The claims of an ID token that was made for denv, for this sign-in, just now; SignInRefusedError says what does not hold."""
    import jwt

    try:
        key = key_of(jwt.get_unverified_header(str(token)).get("kid"))
        claims = jwt.decode(
            str(token),
            key,
            algorithms=ALGORITHMS,
            audience=config.client_id,
            issuer=config.issuer,
            leeway=_LEEWAY_S,
            options={"require": list(_REQUIRED)},
        )
    except jwt.PyJWTError as error:
        raise SignInRefusedError(f"The provider's answer does not hold: {error}.", code="token-bad") from error
    party = claims.get("azp", config.client_id if isinstance(claims["aud"], str) or len(claims["aud"]) == 1 else None)
    if party != config.client_id:
        raise SignInRefusedError("The provider's answer was made for another program.", code="token-bad")
    if not hmac.compare_digest(str(claims["nonce"]).encode(), nonce.encode()):
        raise SignInRefusedError("The provider's answer belongs to another sign-in.", code="token-bad")
    return dict(claims)


def identity_of(claims: Mapping[str, Any], more: Mapping[str, Any], *, config: OidcConfig) -> Identity:
    """The person, by the token's claims and the provider's further word, which must be of the same person."""
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= 255 or not subject.isprintable():
        raise SignInRefusedError("The provider's answer names nobody.", code="token-bad")
    if more and more.get("sub") != subject:
        raise SignInRefusedError("The provider spoke of two different people.", code="token-bad")
    told = {**more, **claims}
    return Identity(
        issuer=config.issuer,
        subject=subject,
        name=_text(told.get("preferred_username")),
        email=_verified_email(claims) or _verified_email(more),
        groups=_groups(told.get(config.groups_claim)),
    )


def _verified_email(told: Mapping[str, Any]) -> str:
    """An address and its verification by the same word: the token's or the endpoint's, never one of each."""
    verified = told.get("email_verified")
    return _text(told.get("email")).lower() if verified is True or verified == "true" else ""  # some send the text


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) and value.isprintable() and len(value) <= 254 else ""


def _groups(value: object) -> frozenset[str]:
    found = [value] if isinstance(value, str) else value
    return frozenset(group for group in found if isinstance(group, str)) if isinstance(found, list) else frozenset()
