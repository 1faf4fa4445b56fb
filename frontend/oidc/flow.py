"""One sign-in on its way: what the browser keeps of it in a signed cookie, and where it is sent (RFC 6749, RFC 7636, RFC 9207).

The cookie spares a row in the database for everybody who only looks at the provider's page, and ties the answer to this browser.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from denvweb.oidc import OidcConfig
from frontend.oidc.claims import Identity, claims_of, identity_of
from frontend.oidc.errors import SignInRefusedError
from frontend.oidc.provider import Provider, key_of, provider_of, tokens_for, userinfo_of

GOOD_FOR_S = 600
_SALT = "denv.oidc.flow"


@dataclass(frozen=True, slots=True)
class Flow:
    """Three secrets of one sign-in, and where it leads."""

    state: str  # comes back in the address: it was this browser that began
    nonce: str  # comes back inside of the signed token: it was made for this sign-in
    verifier: str  # is told to the provider with the code: whoever else gets hold of the code has nothing
    next: str


def begin(next_url: str) -> Flow:
    """A fresh one."""
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return Flow(state, nonce, verifier, next_url)


def redirect_uri() -> str:
    """Where the provider sends people back; it is registered there."""
    return f"{settings.PUBLIC_URL}{reverse('oidc-callback')}"


def address(flow: Flow, config: OidcConfig, provider: Provider) -> str:
    """Where the browser is sent."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(flow.verifier.encode()).digest()).rstrip(b"=").decode()
    asked = {
        "response_type": "code",
        "client_id": config.client_id,
        "redirect_uri": redirect_uri(),
        "scope": config.scopes,
        "state": flow.state,
        "nonce": flow.nonce,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    return f"{provider.authorization_endpoint}{'&' if '?' in provider.authorization_endpoint else '?'}{urlencode(asked)}"


def _cookie(state: str) -> str:
    return f"denv_oidc_{hashlib.sha256(state.encode()).hexdigest()[:8]}"  # one for each tab that has begun


def keep(response: HttpResponse, flow: Flow) -> None:
    """Have the browser keep it, for as long as somebody may take to type a password."""
    response.set_signed_cookie(
        _cookie(flow.state), json.dumps(asdict(flow)), salt=_SALT, max_age=GOOD_FOR_S, path=reverse("oidc-callback"),
        httponly=True, secure=settings.SESSION_COOKIE_SECURE, samesite="Lax",
    )  # fmt: skip


def forget(request: HttpRequest, response: HttpResponse) -> None:
    """It is good once."""
    response.delete_cookie(_cookie(request.GET.get("state", "")), path=reverse("oidc-callback"), samesite="Lax")


def flow_of(request: HttpRequest) -> Flow:
    """The sign-in that this browser began and that comes back now; SignInRefusedError when it did not, or too long ago."""
    state = request.GET.get("state", "")
    try:
        kept: Mapping[str, str] = json.loads(request.get_signed_cookie(_cookie(state), salt=_SALT, max_age=GOOD_FOR_S) or "{}")
    except (KeyError, signing.BadSignature):
        kept = {}
    if not state or not secrets.compare_digest(kept.get("state", "").encode(), state.encode()):
        detail = f"This browser did not begin a sign-in at {settings.PUBLIC_URL} within the last ten minutes. Begin again."
        raise SignInRefusedError(detail, code="state-unknown")
    return Flow(**kept)


def finish(flow: Flow, told: Mapping[str, str], config: OidcConfig) -> Identity:
    """Who came back, by what the provider told the browser and then told us; SignInRefusedError, or ProviderError."""
    if told.get("iss", config.issuer) != config.issuer:
        raise SignInRefusedError("Another provider than the one that was asked has answered.", code="token-bad")
    if error := told.get("error"):
        word = error if error.replace("_", "").isalpha() and error.isascii() else "an error"
        raise SignInRefusedError(f"{config.name} answered {word[:40]}.", code="provider-refused")
    code = told.get("code", "")
    if not code:
        raise SignInRefusedError(f"{config.name} sent no code.", code="provider-refused")
    provider = provider_of(config)
    tokens = tokens_for(config, provider, code=code, verifier=flow.verifier, redirect_uri=redirect_uri())
    claims = claims_of(tokens.get("id_token"), config=config, nonce=flow.nonce, key_of=lambda kid: key_of(config, provider, kid))
    return identity_of(claims, userinfo_of(config, provider, str(tokens.get("access_token") or "")), config=config)
