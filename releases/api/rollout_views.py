"""REST: rollouts, and what a person may tell them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import Action, access_stage, seen_by
from denvweb.api import schema_of
from denvweb.auth import via_of
from denvweb.core import wire
from denvweb.core.errors import ConflictError, NotFoundError
from denvweb.idempotency import idempotent
from denvweb.listing import ChoiceOfField, TimedQuery, WordField, checked, cut
from denvweb.preconditions import StaleError, etag, if_match
from releases.domain.views import RolloutView
from releases.models import Rollout
from releases.selectors.rollouts import ACTIVE, last_rollouts, rollout_view, rollouts_view, view_of
from releases.selectors.stages import stage_row
from releases.services import access, rollouts

T = TypeVar("T")

_ETAG = OpenApiParameter(
    "ETag", str, OpenApiParameter.HEADER, response=[200], description="The rollout and its generation, for `If-Match`."
)
_IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="The `ETag` of the rollout as it was looked at; refused with 412 when it moved on.",
)


@dataclass(frozen=True, slots=True)
class RollbackBody:
    """Where to go back to (a release number; the one before by default), and why."""

    to: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PromoteBody:
    """The rollout's generation as the person saw it; `full` skips all further watches, and needs a reason.

    `break_glass`, a reason, has the rollout go on in spite of freeze windows.
    """

    generation: int | None = None
    reason: str = ""
    full: bool = False
    break_glass: str = ""


@dataclass(frozen=True, slots=True)
class CommandBody:
    """The rollout's generation as the person saw it, and why."""

    generation: int | None = None
    reason: str = ""


class RolloutAnswer(APIView):
    """Answers with a rollout, whose id and generation are its entity tag: what a decision is about, whatever its figures do meanwhile."""

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Also of an answer that is given a second time."""
        if response.status_code == 200 and request.method != "OPTIONS":
            response.headers["ETag"] = etag(response.data["id"], response.data["generation"])
        return super().finalize_response(request, response, *args, **kwargs)


def _body(request: Request, into: type[T]) -> T:
    return wire.from_plain(request.data or {}, into)


@contextmanager
def _as_seen(request: Request, stage: str, generation: int | None) -> Iterator[tuple[str, int | None]]:
    """The rollout (by id; whichever is active when empty) and generation of a stage that the caller may see, by `If-Match` or the body.

    With `If-Match` a rollout that has moved on is StaleError, also when it does so in the block; with the body it is ConflictError.
    """
    wanted = if_match(request)
    if wanted is None:
        yield "", generation
        return
    row = stage_row(stage)
    rollout = last_rollouts([row]).get(row.pk)
    if rollout is None:
        raise StaleError(f"{stage} had no rollout yet.")
    present = etag(rollout.pk, rollout.generation)
    if present not in wanted or generation not in (None, rollout.generation):
        raise StaleError(f"The rollout is {present} now: {rollout.why}. Look again, then decide.")
    try:
        yield rollout.pk, rollout.generation
    except ConflictError as error:
        if error.code != StaleError.code:
            raise
        raise StaleError(error.detail) from error


def _answer(rollout: Rollout) -> Response:
    return Response(wire.to_plain(rollout_view(id=rollout.pk)))


class RolloutsQuery(TimedQuery):
    """Which rollouts, by when they began."""

    model = WordField(max_length=63)
    stage = WordField(help_text="`ds-flash/prod-us`")
    state = ChoiceOfField((ACTIVE, *Rollout.State.values), help_text="`active`: all that have not ended")
    kind = ChoiceOfField(("rollout", "rollback"))
    before = WordField(max_length=24, help_text="`next` of the page before")


@dataclass(frozen=True, slots=True)
class RolloutsPage:
    """Rollouts, newest first; `next` is the `before` of the next page."""

    results: tuple[RolloutView, ...]
    next: str | None


class RolloutsView(APIView):
    """All rollouts."""

    @extend_schema(operation_id="rollouts_list", parameters=[RolloutsQuery], responses=schema_of(RolloutsPage))
    def get(self, request: Request) -> Response:
        """Newest first, under way and over."""
        wanted = checked(RolloutsQuery, request)
        limit = wanted.pop("limit")
        found = rollouts_view(**wanted, limit=limit + 1, models=seen_by(request.user).names)
        return Response(wire.to_plain(RolloutsPage(*cut(found, limit, lambda rollout: rollout.id))))


class RolloutDetailView(RolloutAnswer):
    """One rollout."""

    @extend_schema(operation_id="rollouts_retrieve", parameters=[_ETAG], responses=schema_of(RolloutView))
    def get(self, request: Request, id: str) -> Response:
        """The rollout, under way or over."""
        return Response(wire.to_plain(access.access_rollout(request.user, rollout_view(id=id))))


class StageRolloutView(RolloutAnswer):
    """The rollout of a stage."""

    @extend_schema(operation_id="stages_rollout", parameters=[_ETAG], responses=schema_of(RolloutView))
    def get(self, request: Request, model: str, name: str) -> Response:
        """The one under way, or else the last one."""
        access_stage(request.user, f"{model}/{name}")
        row = stage_row(f"{model}/{name}")
        rollout = last_rollouts([row]).get(row.pk)
        if rollout is None:
            raise NotFoundError(f"{row} had no rollout yet.")
        return Response(wire.to_plain(view_of(rollout)))


class RollbackView(RolloutAnswer):
    """One click back."""

    @extend_schema(
        operation_id="stages_rollback",
        parameters=[_ETAG],
        request=schema_of(RollbackBody),
        responses=schema_of(RolloutView),
    )
    @idempotent
    def post(self, request: Request, model: str, name: str) -> Response:
        """Send all traffic back. Written down before the reply, then begun at once; asking twice gives the same rollback.

        It is never refused for an old view of things: `If-Match` has no say here.
        """
        body = _body(request, RollbackBody)
        stage = f"{model}/{name}"
        access_stage(request.user, stage, Action.ROLL_BACK)
        return _answer(rollouts.rollback(stage=stage, to=body.to, actor=_actor(request), via=via_of(request), reason=body.reason))


class PromoteView(RolloutAnswer):
    """Go on."""

    @extend_schema(
        operation_id="rollouts_promote",
        parameters=[_ETAG, _IF_MATCH],
        request=schema_of(PromoteBody),
        responses=schema_of(RolloutView),
    )
    @idempotent
    def post(self, request: Request, model: str, name: str) -> Response:
        """Approve the next step, or end the present watch. Refused with `stale-generation` when the rollout has moved on."""
        body, stage = _body(request, PromoteBody), f"{model}/{name}"
        access_stage(request.user, stage)
        with _as_seen(request, stage, body.generation) as (rollout, seen):
            generation = access.access_promote(request.user, stage, generation=seen, full=body.full)
            access.access_break_glass(request.user, model, body.break_glass)
            return _answer(
                rollouts.rollout_promote(
                    rollout_id=rollout,
                    stage=stage,
                    generation=generation,
                    reason=body.reason,
                    full=body.full,
                    break_glass=body.break_glass,
                    actor=_actor(request),
                    via=via_of(request),
                )
            )


def _command(request: Request, stage: str, service: Callable[..., Rollout]) -> Response:
    access_stage(request.user, stage, Action.PAUSE)
    body = _body(request, CommandBody)
    with _as_seen(request, stage, body.generation) as (rollout, seen):
        return _answer(
            service(rollout_id=rollout, stage=stage, generation=seen, reason=body.reason, actor=_actor(request), via=via_of(request))
        )


class PauseView(RolloutAnswer):
    """Go no further."""

    @extend_schema(
        operation_id="rollouts_pause", parameters=[_ETAG, _IF_MATCH], request=schema_of(CommandBody), responses=schema_of(RolloutView)
    )
    @idempotent
    def post(self, request: Request, model: str, name: str) -> Response:
        """Hold the rollout where it is; alarms stay armed."""
        return _command(request, f"{model}/{name}", rollouts.rollout_pause)


class ResumeView(RolloutAnswer):
    """Go on after a pause."""

    @extend_schema(
        operation_id="rollouts_resume", parameters=[_ETAG, _IF_MATCH], request=schema_of(CommandBody), responses=schema_of(RolloutView)
    )
    @idempotent
    def post(self, request: Request, model: str, name: str) -> Response:
        """Let a paused rollout go on."""
        return _command(request, f"{model}/{name}", rollouts.rollout_resume)


class AbortView(RolloutAnswer):
    """Give it up."""

    @extend_schema(operation_id="rollouts_abort", parameters=[_ETAG], request=schema_of(CommandBody), responses=schema_of(RolloutView))
    @idempotent
    def post(self, request: Request, model: str, name: str) -> Response:
        """Give the rollout up: all traffic goes back to the stable release. Like a rollback it is never refused for an old view."""
        stage, body = f"{model}/{name}", _body(request, CommandBody)
        access_stage(request.user, stage, Action.ROLL_BACK)
        return _answer(rollouts.rollout_abort(stage=stage, reason=body.reason, actor=_actor(request), via=via_of(request)))


def _actor(request: Request) -> str:
    return request.user.get_username()
