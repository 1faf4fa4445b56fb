"""Logging in, with a limit on how often it may be tried. Who failed is in the journal."""

from __future__ import annotations

import math
import time
from typing import Any

from django.contrib.auth import views
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, HttpResponse

from denvweb.throttle import take
from frontend.accounts.sessions import session_note
from metrics.services import refusal_append


class LoginView(views.LoginView):
    """Ten tries of one name from one address at once and then one in ten seconds; many more of one address, which may be a proxy's."""

    template_name = "frontend/login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Try, unless it was tried too often."""
        wait_s = _wait_s(str(request.META.get("REMOTE_ADDR", "")), _name(request))
        if not wait_s:
            return super().post(request, *args, **kwargs)
        unbound = AuthenticationForm(request)  # a bound one would try the password
        response = self.render_to_response(self.get_context_data(form=unbound, wait_s=math.ceil(wait_s)), status=429)
        response.headers["Retry-After"] = str(math.ceil(wait_s))
        return response

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Signed in; the session notes where that was."""
        response = super().form_valid(form)
        session_note(self.request)
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """A line in the journal; as many as there may be tries."""
        name = _name(self.request)
        refusal_append(what="to log in", code="login-failed", detail="name and password do not fit", actor=name or "nobody", via="ui")
        return super().form_invalid(form)


def _name(request: HttpRequest) -> str:
    return request.POST.get("username", "").replace("\0", "").strip()[:150]


def _wait_s(address: str, name: str) -> float:
    now_mono_s = time.monotonic()
    of_name = take(f"login {address} {name}", per_s=0.1, burst=10, now_mono_s=now_mono_s)
    return max(of_name, take(f"login {address}", per_s=1, burst=50, now_mono_s=now_mono_s))
