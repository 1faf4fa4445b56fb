"""What agents and routers call. Lean views: they are called every second by every router."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from denvweb.api import refusal
from denvweb.auth import bearer, token_check
from denvweb.core import wire
from denvweb.core.errors import DenvError, InvalidError, NobodyError
from denvweb.models import ApiToken
from denvweb.wake import Waiter
from fleets.domain.protocol import JoinRequest, LogPiece, RouterReport, RouterTable
from fleets.selectors import router_table, table_generation
from fleets.services import log_piece_take, nodes_join, router_report_take

WAIT_MAX_S = 60.0
LOOK_EVERY_S = 1.0  # without a poke: Redis may be away
TOKEN_TRUSTED_S = 10.0  # a revoked router token works for at most so long
_TOKENS_MAX = 10_000

A = TypeVar("A")
R = TypeVar("R")
View = Callable[[HttpRequest], HttpResponse]


def _json(value: object) -> HttpResponse:
    return HttpResponse(wire.encode(value), content_type="application/json")


def _answers_errors(view: View) -> View:
    @wraps(view)
    def wrapped(request: HttpRequest) -> HttpResponse:
        try:
            return view(request)
        except DenvError as error:
            return refusal(error)

    return wrapped


@csrf_exempt
@require_POST
@_answers_errors
def join(request: HttpRequest) -> HttpResponse:
    """A join token for credentials."""
    return _json(nodes_join(request=wire.decode(request.body, JoinRequest)))


@csrf_exempt
@require_POST
@_answers_errors
def logs(request: HttpRequest) -> HttpResponse:
    """A piece of a log that somebody reads."""
    credential = bearer(request.headers.get("Authorization", ""))
    return _json(log_piece_take(credential=credential, piece=wire.decode(request.body, LogPiece)))


_trusted: dict[bytes, float] = {}  # hash of a router's token -> monotonic time until which it is not looked up again


def _router_check(request: HttpRequest) -> None:
    text = bearer(request.headers.get("Authorization", ""))
    key = hashlib.sha256(text.encode()).digest()
    if _trusted.get(key, 0.0) > time.monotonic():
        return
    if not text or token_check(text, ApiToken.Scope.ROUTER) is None:
        _trusted.pop(key, None)
        raise NobodyError("This router token is unknown, expired or revoked; make one with `denv token --router`.")
    if len(_trusted) >= _TOKENS_MAX:
        _trusted.clear()
    _trusted[key] = time.monotonic() + TOKEN_TRUSTED_S


@csrf_exempt
@require_POST
@_answers_errors
def router_report(request: HttpRequest) -> HttpResponse:
    """One second of a router."""
    _router_check(request)
    report = wire.decode(request.body, RouterReport)
    router_report_take(report=report)
    return _json({"seq": report.seq})


@require_GET
async def table(request: HttpRequest) -> HttpResponse:
    """A stage's table as soon as its generation is not the one that the router has, else 204 after `wait_s`."""
    try:
        await _in_thread(_router_check, request)
        stage = request.GET.get("stage", "")
        if not stage:
            raise InvalidError("Which stage? Add ?stage=MODEL/STAGE.", fields={"stage": ["is missing"]})
        known = int(_number(request, "generation", -1))
        wait_s = min(WAIT_MAX_S, max(0.0, _number(request, "wait_s", 0.0)))
        return await _table_wait(stage, known, wait_s)
    except DenvError as error:
        return refusal(error)


def _number(request: HttpRequest, name: str, default: float) -> float:
    text = request.GET.get(name)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise InvalidError(f"{name} is `{text}`; it must be a number.", fields={name: ["is no number"]}) from None


async def _table_wait(stage: str, known: int, wait_s: float) -> HttpResponse:
    ends_at = time.monotonic() + wait_s
    async with Waiter(f"router.{stage}") as waiter:
        while True:
            if await _in_thread(_generation, stage) != known:
                return _json(await _in_thread(_table, stage))
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                return HttpResponse(status=204)
            await waiter.wait(min(LOOK_EVERY_S, left_s))


def _generation(stage: str) -> int:
    return table_generation(stage=stage) or 0


def _table(stage: str) -> RouterTable:
    if table_generation(stage=stage) is None:  # before its first release a stage has an empty table
        return RouterTable(stage=stage, model=stage.partition("/")[0], epoch=0, generation=0)
    return router_table(stage=stage)


async def _in_thread(function: Callable[[A], R], argument: A) -> R:
    """Run in the request's thread, and give its database connection back at once: a long poll may hold none."""

    def run() -> R:
        try:
            return function(argument)
        finally:
            close_old_connections()

    return await sync_to_async(run)()
