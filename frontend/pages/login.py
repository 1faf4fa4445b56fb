"""Logging in, with a limit on how often it may be tried. Who failed is in the journal."""

from __future__ import annotations

import math
import time
from typing import Any

from django.conf import settings
from django.contrib.auth import views
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render, resolve_url

from denvweb.throttle import take
from frontend.accounts.sessions import session_began, session_how
from metrics.services import event_append, refusal_append


class LoginView(views.LoginView):
    """Ten tries of one name from one address at once and then one in ten seconds; many more of one address, which may be a proxy's."""

    template_name = "frontend/login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Try, unless it was tried too often."""
        wait_s = login_wait_s(request, _name(request))
        return login_page(request, wait_s=math.ceil(wait_s), status=429) if wait_s else super().post(request, *args, **kwargs)

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        """With the provider's button, if there is one."""
        return super().get_context_data(oidc=settings.OIDC, signed_out="signed_out" in self.request.GET, **more)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Signed in; the session notes where that was."""
        response = super().form_valid(form)
        session_began(self.request, how="with a password")
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """A line in the journal; as many as there may be tries."""
        name = _name(self.request)
        refusal_append(what="to log in", code="login-failed", detail="name and password do not fit", actor=name or "nobody", via="ui")
        return super().form_invalid(form)


class LogoutView(views.LogoutView):
    """Out of denv; whoever came through the provider may be signed in there still, and is told so."""

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Ends the session, which the journal has."""
        actor, through = request.user.get_username(), session_how(request).startswith("through ")
        response = super().post(request, *args, **kwargs)
        if actor:
            event_append(kind="session.ended", sentence=f"{actor} signed out", actor=actor, via="ui")
        return redirect(f"{resolve_url(settings.LOGIN_URL)}?signed_out") if through and settings.OIDC else response


def admin_login(request: HttpRequest) -> HttpResponse:
    """The administration's own way in, which knows no limit and no provider, is this one."""
    if request.user.is_authenticated:
        raise PermissionDenied("The administration is for staff.")
    return redirect_to_login(request.GET.get("next", "/admin/"))


def _name(request: HttpRequest) -> str:
    return request.POST.get("username", "").replace("\0", "").strip()[:150]


def login_page(request: HttpRequest, *, problem: str = "", wait_s: int = 0, status: int) -> HttpResponse:
    """The page with what went wrong, and nothing tried."""
    asked = request.POST.get("next", request.GET.get("next", ""))
    context = {"form": AuthenticationForm(request), "oidc": settings.OIDC, "next": asked, "problem": problem, "wait_s": wait_s}
    response = render(request, "frontend/login.html", context, status=status)
    if wait_s:
        response.headers["Retry-After"] = str(wait_s)
    return response


def login_wait_s(request: HttpRequest, name: str) -> float:
    """Seconds until this may be tried again, 0 for now; each call is one try."""
    address, now_mono_s = str(request.META.get("REMOTE_ADDR", "")), time.monotonic()
    of_name = take(f"login {address} {name}", per_s=0.1, burst=10, now_mono_s=now_mono_s) if name else 0.0
    return max(of_name, take(f"login {address}", per_s=1, burst=50, now_mono_s=now_mono_s))
