"""Where Slack calls, and where a person links their Slack account."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import cast
from urllib.parse import parse_qsl

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods, require_POST

from denvweb.core.errors import DenvError
from frontend.pages.base import PageRequest, page, whole
from frontend.slack import requests
from frontend.slack.app import UsedError, slack_config
from frontend.slack.people import link_read, link_redeem
from frontend.slack.signature import is_slack

log = logging.getLogger(__name__)

BODY_MAX_BYTES = 256 * 1024
Handler = Callable[[dict[str, str], str], HttpResponse]  # the form, and the signature that makes it a request of its own


def from_slack(handler: Handler) -> Callable[[HttpRequest], HttpResponse]:
    """A view for requests that Slack has signed. All others get a 401 without a word, replays of good ones too."""

    @csrf_exempt
    @require_POST
    @wraps(handler)
    def view(request: HttpRequest) -> HttpResponse:
        length = request.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and int(length[:9]) <= BODY_MAX_BYTES):
            return HttpResponse(status=413)
        try:
            config = slack_config()
        except DenvError as error:
            return HttpResponse(error.detail, status=404, content_type="text/plain")
        stamp, signature = request.headers.get("X-Slack-Request-Timestamp", ""), request.headers.get("X-Slack-Signature", "")
        secret, body = config.signing_secret, request.body
        if not secret or not is_slack(secret, timestamp=stamp, signature=signature, body=body, now_s=time.time()):
            return HttpResponse(status=401)
        try:
            data = dict(parse_qsl(body.decode(), keep_blank_values=True))
            return handler(data, signature) if _is_ours(data, config.team) else HttpResponse(status=401)
        except UsedError:
            return HttpResponse(status=401)
        except ValueError:  # signed, and yet no form or no JSON
            return HttpResponse(status=400)

    return view


def _is_ours(data: dict[str, str], team: str) -> bool:
    """Whether it is from the workspace that the app was set up for. A check of the certificate names none."""
    if "payload" in data:
        payload = json.loads(data["payload"])
        return isinstance(payload, dict) and (payload.get("team") or {}).get("id") == team
    return "ssl_check" in data or data.get("team_id") == team


@from_slack
def command(data: dict[str, str], signature: str) -> HttpResponse:
    """`/denv ...`; the answer is the response's own body."""
    return HttpResponse() if "ssl_check" in data else JsonResponse(requests.command(data, seen=signature))


@from_slack
def interaction(data: dict[str, str], signature: str) -> HttpResponse:
    """A click on a button; anything else (a link opened, a menu) is of no concern."""
    payload = json.loads(data.get("payload", "{}"))
    if payload.get("type") == "block_actions":
        requests.click(payload, seen=signature)
    return HttpResponse()


@require_http_methods(["GET", "HEAD", "POST"])
@page
def link(request: PageRequest) -> HttpResponse:
    """GET asks whether this Slack account is one's own; POST links it."""
    token = request.POST.get("t", "") or request.GET.get("t", "")
    try:
        if request.method == "POST":
            caller = link_redeem(token, account=cast(User, request.user))
            messages.success(request, f"{caller.words} is you now: `/denv` in Slack does what your roles allow.", extra_tags="ok")
            return redirect("overview")
        caller, _ = link_read(token)
    except DenvError as error:
        messages.error(request, f"Not linked: {error.detail}", extra_tags="bad")
        return redirect("overview")
    return whole(request, "slack_link", {"title": "Link Slack", "section": "overview", "caller": caller, "token": token})
