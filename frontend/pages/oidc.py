"""Signing in through the provider: away to it, and back. Who was turned away is in the journal."""

from __future__ import annotations

import logging
import math
from datetime import timedelta
from typing import cast
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import auth
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, resolve_url
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST, require_safe

from denvweb.oidc import OidcConfig
from frontend.accounts.sessions import session_began
from frontend.oidc import flow as flows
from frontend.oidc.claims import Identity
from frontend.oidc.errors import ProviderError, SignInRefusedError
from frontend.oidc.people import account_for, identity_owner, link_redeem, link_token
from frontend.oidc.provider import provider_of
from frontend.pages.base import PageRequest, attempt, page, person, whole
from frontend.pages.login import login_page, login_wait_s
from metrics.services import refusal_append

log = logging.getLogger(__name__)


def _config() -> OidcConfig:
    config: OidcConfig | None = settings.OIDC
    if config is None:
        raise Http404("No provider is set up here.")
    return config


@require_safe
def oidc_start(request: HttpRequest) -> HttpResponse:
    """Send the browser to the provider."""
    config = _config()
    asked = request.GET.get("next", "")
    fits = url_has_allowed_host_and_scheme(asked, allowed_hosts={request.get_host()}, require_https=request.is_secure())
    flow = flows.begin(asked if fits else resolve_url(settings.LOGIN_REDIRECT_URL))
    if wait_s := login_wait_s(request, ""):
        return login_page(request, wait_s=math.ceil(wait_s), status=429)
    try:
        response = HttpResponseRedirect(flows.address(flow, config, provider_of(config)))
    except ProviderError as error:
        return _away(request, error)
    flows.keep(response, flow)
    response.headers["Cache-Control"] = "no-store"
    return response


@require_GET
def oidc_callback(request: HttpRequest) -> HttpResponse:
    """Back from the provider: signed in, or told why not."""
    config = _config()
    if wait_s := login_wait_s(request, ""):
        return login_page(request, wait_s=math.ceil(wait_s), status=429)
    response = _finish(request, config)
    flows.forget(request, response)
    response.headers["Cache-Control"] = "no-store"
    return response


def _finish(request: HttpRequest, config: OidcConfig) -> HttpResponse:
    try:
        flow = flows.flow_of(request)
        identity = flows.finish(flow, request.GET.dict(), config)
        if isinstance(request.user, User) and identity_owner(identity) != request.user:
            return _is_it_you(request, identity, request.user, config)
        account = account_for(identity, config)
    except ProviderError as error:
        return _away(request, error)
    except SignInRefusedError as error:
        refusal_append(what=f"to sign in through {config.name}", code=error.code, detail=error.detail, actor=error.who, via="ui")
        return login_page(request, problem=error.detail, status=error.http_status)
    auth.login(request, account, backend="django.contrib.auth.backends.ModelBackend")
    # A moment, since a number of seconds would begin anew with each change of the session.
    request.session.set_expiry(timezone.now() + timedelta(seconds=config.session_s))
    session_began(request, how=f"through {config.name}")
    return redirect(flow.next)


def _is_it_you(request: HttpRequest, identity: Identity, account: User, config: OidcConfig) -> HttpResponse:
    """Somebody who is signed in wants this way in too. They are asked, since another site can bring a browser here."""
    context = {
        "title": f"Link {config.name}",
        "section": "settings",
        "identity": identity,
        "oidc": config,
        "token": link_token(identity, account),
    }
    return whole(cast(PageRequest, request), "oidc_link", context)


@require_POST
@page
def oidc_link(request: PageRequest) -> HttpResponse:
    """Yes, it is."""
    config = _config()
    attempt(
        request,
        lambda: link_redeem(request.POST.get("t", ""), person(request), config),
        done=f"You can sign in with {config.name} from now on.",
        refused="Not linked",
    )
    return redirect("settings")


@require_safe
def oidc_logout(request: HttpRequest) -> HttpResponse:
    """On to the provider's own way out (OpenID Connect RP-Initiated Logout 1.0), for whoever asks for it after denv's."""
    config = _config()
    try:
        end = provider_of(config).end_session_endpoint
    except ProviderError as error:
        return _away(request, error)
    if not end:
        raise Http404("The provider has no such page.")
    asked = {"client_id": config.client_id, "post_logout_redirect_uri": f"{settings.PUBLIC_URL}{resolve_url('login')}"}
    return HttpResponseRedirect(f"{end}{'&' if '?' in end else '?'}{urlencode(asked)}")


def _away(request: HttpRequest, error: ProviderError) -> HttpResponse:
    """Nobody's fault who is here: said, logged, and the other way in is right there."""
    log.warning("a sign-in did not work: %s", error.detail)
    return login_page(request, problem=f"{error.detail} Try again, or sign in with a name and password.", status=error.http_status)
