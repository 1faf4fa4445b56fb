"""Who is calling: bearer tokens for the API and for routers; sessions are Django's own."""

from __future__ import annotations

from datetime import datetime

from asgiref.sync import sync_to_async
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import AbstractBaseUser, User
from django.contrib.sessions.models import Session
from django.http import HttpRequest
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from denvweb.core.ids import new_credential, parse_credential, secret_matches
from denvweb.logs import proof
from denvweb.models import ApiToken


def token_create(*, user: User, scope: str = ApiToken.Scope.API, label: str = "", expires_at: datetime | None = None) -> str:
    """A new token's text; it cannot be read again."""
    credential = new_credential("router" if scope == ApiToken.Scope.ROUTER else "tok")
    ApiToken.objects.create(
        id=credential.id, secret_hash=credential.secret_hash, user=user, scope=scope, label=label, expires_at=expires_at
    )
    return credential.text


def token_check(text: str, scope: str) -> ApiToken | None:
    """The live token behind a bearer text, if it has this scope."""
    credential = parse_credential(text)
    if credential is None:
        return None
    token = ApiToken.objects.select_related("user").filter(id=credential.id, scope=scope, revoked_at=None).first()
    if token is None or not secret_matches(credential.secret, token.secret_hash) or not token.user.is_active:
        return None
    if token.expires_at is not None and token.expires_at <= timezone.now():
        return None
    return token


def bearer(header: str) -> str:
    """The token in an Authorization header, or an empty text."""
    scheme, _, text = header.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


async def caller_of(request: HttpRequest) -> AbstractBaseUser | None:
    """Who calls an asynchronous view, by bearer token or session; None for nobody."""
    text = bearer(request.headers.get("Authorization", ""))
    if text:
        token = await sync_to_async(token_check)(text, ApiToken.Scope.API)
        return token.user if token else None
    user = await request.auser()
    return user if user.is_authenticated else None


def caller_still(request: HttpRequest) -> AbstractBaseUser | None:
    """The same person as they are by now; None once token, session or account ended, or the password changed."""
    text = bearer(request.headers.get("Authorization", ""))
    if text:
        token = token_check(text, ApiToken.Scope.API)
        return token.user if token else None
    key = request.session.session_key
    if not key or not Session.objects.filter(session_key=key, expire_date__gt=timezone.now()).exists():
        return None
    user = User.objects.filter(pk=request.session.get(SESSION_KEY, 0), is_active=True).first()
    known = request.session.get(HASH_SESSION_KEY, "")  # of the password that the person signed in with, as Django checks at each request
    return user if user is not None and constant_time_compare(known, user.get_session_auth_hash()) else None


class ApiTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer tok-....secret`."""

    def authenticate(self, request: Request) -> tuple[AbstractBaseUser, ApiToken] | None:
        text = bearer(request.headers.get("Authorization", ""))
        if not text:
            return None
        token = token_check(text, ApiToken.Scope.API)
        if token is None:
            raise AuthenticationFailed("This token is unknown, expired or revoked; run `denv login` again.")
        proof.set(f"token {token.pk}")
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class ProvenSessionAuthentication(SessionAuthentication):
    """Django's session, with the CSRF check; noted as the proof."""

    def authenticate(self, request: Request) -> tuple[AbstractBaseUser, None] | None:
        found: tuple[AbstractBaseUser, None] | None = super().authenticate(request)
        if found is not None:
            proof.set("session")
        return found


def user_of(request: Request) -> User:
    """The account that calls a view which lets nobody else through."""
    assert isinstance(request.user, User)  # the only kind of account that there is
    return request.user


def via_of(request: Request) -> str:
    """Through what a change came, for the journal: the page, the command, or another client of the API."""
    if isinstance(request.auth, ApiToken):
        return "cli" if request.headers.get("User-Agent", "").startswith("denv/") else "api"
    return "ui"
