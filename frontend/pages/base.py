"""What all pages share: signing in first, the error tree as pages, and a whole page or only its living part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from django.contrib import messages
from django.contrib.auth.models import AbstractBaseUser, User
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django_htmx.http import HttpResponseClientRedirect
from django_htmx.middleware import HtmxDetails

from denvweb.access import seen_by
from denvweb.core.errors import DenvError, ForbiddenError, NotFoundError
from denvweb.logs import proof
from metrics.services import refusal_append
from releases.domain.views import StageHead, StageView

P = ParamSpec("P")
S = TypeVar("S", StageHead, StageView)


class PageRequest(HttpRequest):
    """A request of somebody who has signed in, as the middleware leaves it."""

    htmx: HtmxDetails
    user: AbstractBaseUser | User  # type: ignore[assignment]  # the decorator below has turned anonymous ones away


def page(view: Callable[Concatenate[PageRequest, P], HttpResponseBase]) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """A view for people who have signed in.

    A refresh by a page whose session has ended is sent to the login as a whole page, not swapped into the old one; and from
    there to the page that it is a part of.
    """

    @wraps(view)
    def inner(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        asked = cast(PageRequest, request)
        if not request.user.is_authenticated:
            login = redirect_to_login((asked.htmx and asked.htmx.current_url_abs_path) or request.get_full_path())
            return HttpResponseClientRedirect(login["Location"]) if asked.htmx else login
        proof.set("session")
        try:
            response = view(asked, *args, **kwargs)
        except (NotFoundError, ForbiddenError) as error:
            if request.method not in {"GET", "HEAD"}:
                write_refusal(asked, error, stage=_stage_of(kwargs))
            raise (Http404 if isinstance(error, NotFoundError) else PermissionDenied)(error.detail) from error
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    return inner


def _stage_of(kwargs: Mapping[str, object]) -> str:
    """The stage that an address names, if it can be one's name."""
    model, name = str(kwargs.get("model", "")), str(kwargs.get("name", ""))
    return f"{model}/{name}" if 0 < len(model) < 64 and 0 < len(name) < 64 else ""


def whole(request: PageRequest, template: str, context: Mapping[str, Any], *, status: int = 200) -> HttpResponse:
    """A template with what every page has."""
    return render(request, f"frontend/{template}.html", {"now": datetime.now(UTC), **context}, status=status)


def show(request: PageRequest, name: str, context: Mapping[str, Any]) -> HttpResponse:
    """The page `name`, or only what lives in it (`_name.html`) when the page itself asks again."""
    response = whole(request, f"_{name}" if request.htmx else name, {"living": f"frontend/_{name}.html", **context})
    patch_vary_headers(response, ["HX-Request"])
    return response


def seen_stages(request: PageRequest, stages: Sequence[S]) -> tuple[S, ...]:
    """Those of the stages that this person may see."""
    seen = seen_by(request.user)
    return tuple(stage for stage in stages if stage.model in seen)


def write_refusal(request: PageRequest, error: DenvError, *, stage: str = "") -> None:
    """A line in the journal: what a form asked for, and why it was not done."""
    what = f"{request.method} {request.path}"[:300]
    refusal_append(what=what, code=error.code, detail=error.detail, actor=actor(request), via="ui", stage=stage)


def attempt(request: PageRequest, do: Callable[[], object], *, done: str, stage: str = "", refused: str = "Refused") -> bool:
    """What a form asks for: done, and said so; or refused, said why and written down. What is not theirs to see is a 404."""
    try:
        do()
    except NotFoundError:
        raise
    except DenvError as error:
        write_refusal(request, error, stage=stage)
        messages.error(request, f"{refused}: {error.detail}", extra_tags="bad")
        return False
    messages.success(request, done, extra_tags="ok")
    return True


def person(request: PageRequest) -> User:
    """Who asks."""
    assert isinstance(request.user, User)  # the only kind of account that there is
    return request.user


def actor(request: PageRequest) -> str:
    """Who did it, for the journal."""
    return request.user.get_username()
