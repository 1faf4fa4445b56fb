"""What denv asks the provider: where its endpoints are, its keys, and what a code stands for (OpenID Connect Discovery 1.0, Core 1.0)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

from denvweb.core import wire
from denvweb.core.errors import InvalidError
from denvweb.oidc import OidcConfig, is_safe
from frontend.oidc.errors import ProviderError, SignInRefusedError

if TYPE_CHECKING:
    import ssl

    from jwt import PyJWK

TIMEOUT_S = 5.0
_HEADERS = {"Accept": "application/json"}
_KNOWN_FOR_S = 3600.0
_KEYS_AGAIN_S = 10.0  # the soonest that an unknown key makes us ask again: whoever sends rubbish must not hammer the provider


@dataclass(frozen=True, slots=True)
class Provider:
    """Its own description of itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    end_session_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


_providers: dict[str, tuple[float, Provider]] = {}  # by issuer: monotonic time of the answer, and the answer
_keys: dict[str, tuple[float, tuple[PyJWK, ...]]] = {}  # by the keys' address, likewise


def provider_of(config: OidcConfig) -> Provider:
    """The provider as it describes itself, asked once an hour; ProviderError when it does not, or is another than it should be."""
    at_mono_s, known = _providers.get(config.issuer, (0.0, None))
    if known is not None and time.monotonic() - at_mono_s < _KNOWN_FOR_S:
        return known
    found = _get(config, f"{config.issuer.rstrip('/')}/.well-known/openid-configuration")
    try:
        provider = wire.from_plain(found, Provider)
    except InvalidError as error:
        raise ProviderError(f"{config.name} does not describe itself as a provider: {error.detail}.") from error
    if provider.issuer != config.issuer:
        raise ProviderError(f"The provider calls itself {provider.issuer[:200]!a}; set DENV_OIDC_ISSUER to exactly that.")
    endpoints = (
        provider.authorization_endpoint,
        provider.token_endpoint,
        provider.jwks_uri,
        provider.userinfo_endpoint,
        provider.end_session_endpoint,
    )
    if not all(is_safe(url) for url in endpoints if url):
        raise ProviderError(f"{config.name} names an endpoint that is not https.")
    _providers[config.issuer] = time.monotonic(), provider
    return provider


def key_of(config: OidcConfig, provider: Provider, kid: object) -> PyJWK:
    """The public key that a token says it was signed with; asked for again when it is not known, since providers change their keys."""
    at_mono_s, keys = _keys.get(provider.jwks_uri, (-_KNOWN_FOR_S, ()))
    age_s = time.monotonic() - at_mono_s
    if age_s < _KNOWN_FOR_S and (found := _pick(keys, kid)):
        return found
    if age_s >= _KEYS_AGAIN_S:
        keys = _read_keys(_get(config, provider.jwks_uri))
        _keys[provider.jwks_uri] = time.monotonic(), keys
        if found := _pick(keys, kid):
            return found
    raise SignInRefusedError(
        "The answer was signed with a key that is none of the provider's; if it has just changed them, try again in ten seconds.",
        code="token-bad",
    )


def _pick(keys: tuple[PyJWK, ...], kid: object) -> PyJWK | None:
    if kid is None:
        return keys[0] if len(keys) == 1 else None
    return next((key for key in keys if key.key_id == kid), None)


def _read_keys(found: dict[str, Any]) -> tuple[PyJWK, ...]:
    from jwt import PyJWKSet, PyJWTError

    try:
        keys = PyJWKSet.from_dict(found).keys
    except (PyJWTError, AttributeError, TypeError) as error:
        raise ProviderError(f"The provider's keys cannot be read: {error}.") from error
    return tuple(key for key in keys if key.public_key_use in (None, "sig") and key.key_type != "oct")  # a published secret proves nothing


def tokens_for(config: OidcConfig, provider: Provider, *, code: str, verifier: str, redirect_uri: str) -> dict[str, Any]:
    """What the code was worth: `id_token` and `access_token`. SignInRefusedError when it was worth nothing."""
    import httpx

    form = {
        "grant_type": "authorization_code",
        "code": code,
        "code_verifier": verifier,
        "redirect_uri": redirect_uri,
        "client_id": config.client_id,
    }
    auth = None
    if config.client_secret:
        methods = provider.token_endpoint_auth_methods_supported
        if "client_secret_basic" in methods or "client_secret_post" not in methods:
            auth = (quote_plus(config.client_id), quote_plus(config.client_secret))  # RFC 6749, 2.3.1
        else:
            form["client_secret"] = config.client_secret
    try:
        answer = httpx.post(provider.token_endpoint, data=form, auth=auth, headers=_HEADERS, timeout=TIMEOUT_S, verify=_tls())
        found = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise ProviderError(f"{config.name} did not answer: {type(error).__name__}.") from error
    problem = found.get("error") if isinstance(found, dict) else "no JSON object"
    if problem == "invalid_client" or answer.status_code == 401:
        raise ProviderError(f"{config.name} does not know denv: its client id or secret is wrong.")
    if answer.status_code >= 500:
        raise ProviderError(f"{config.name} answered {answer.status_code}.")
    if answer.status_code != 200 or problem:
        word = "".join(filter(str.isprintable, str(problem)))[:60]
        raise SignInRefusedError(f"{config.name} did not take the code: {word}.", code="code-refused")
    return dict(found)


def userinfo_of(config: OidcConfig, provider: Provider, access_token: str) -> dict[str, Any]:
    """What the provider says of the person beyond the token: many keep addresses and groups there."""
    if not provider.userinfo_endpoint or not access_token:
        return {}
    return _get(config, provider.userinfo_endpoint, {"Authorization": f"Bearer {access_token}"})


@cache
def _tls() -> ssl.SSLContext:
    """Made once: it takes longer than asking."""
    import httpx

    return httpx.create_ssl_context()


def _get(config: OidcConfig, url: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    import httpx

    try:
        answer = httpx.get(url, headers={**_HEADERS, **(headers or {})}, timeout=TIMEOUT_S, verify=_tls())
        answer.raise_for_status()
        found = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise ProviderError(f"{config.name} did not answer: {_words(error)}.") from error
    if not isinstance(found, dict):
        raise ProviderError(f"{config.name} answered with no JSON object.")
    return found


def _words(error: Exception) -> str:
    import httpx

    return f"status {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else type(error).__name__
