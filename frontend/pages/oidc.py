"""Signing in through the provider: away to it, and back. Who was turned away is in the journal."""

from __future__ import annotations

import logging
import math

from django.conf import settings
from django.contrib import auth
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, resolve_url
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_safe

from denvweb.oidc import OidcConfig
from frontend.accounts.sessions import session_began
from frontend.oidc import flow as flows
from frontend.oidc.errors import ProviderError, SignInRefusedError
from frontend.oidc.people import account_for
from frontend.oidc.provider import provider_of
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
    if request.user.is_authenticated:
        return HttpResponseRedirect(flow.next)
    if wait_s := login_wait_s(request, ""):
        return login_page(request, wait_s=math.ceil(wait_s), status=429)
    try:
        response = HttpResponseRedirect(flows.address(flow, config, provider_of(config)))
    except ProviderError as error:
        return _away(request, error)
    flows.keep(response, flow)
    response.headers["Cache-Control"] = "no-store"
    return response


@require_safe
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
        account = account_for(flows.finish(flow, request.GET.dict(), config), config)
    except ProviderError as error:
        return _away(request, error)
    except SignInRefusedError as error:
        refusal_append(what=f"to sign in through {config.name}", code=error.code, detail=error.detail, actor=error.who, via="ui")
        return login_page(request, problem=error.detail, status=error.http_status)
    auth.login(request, account, backend="django.contrib.auth.backends.ModelBackend")
    request.session.set_expiry(config.session_s)
    session_began(request, how=f"through {config.name}")
    return redirect(flow.next)


def _away(request: HttpRequest, error: ProviderError) -> HttpResponse:
    """Nobody's fault who is here: said, logged, and the other way in is right there."""
    log.warning("a sign-in did not work: %s", error.detail)
    return login_page(request, problem=f"{error.detail} Try again, or sign in with a name and password.", status=error.http_status)
