"""REST: releases, dry runs and recipes."""

from __future__ import annotations

from dataclasses import dataclass

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import Action, access_model
from denvweb.api import schema_of
from denvweb.auth import via_of
from denvweb.core import wire
from denvweb.core.errors import InvalidError
from denvweb.idempotency import idempotent
from denvweb.listing import FlagField, TimedQuery, WordField, checked, cut
from releases.domain.views import DiffView, DryRunView, RecipeView, ReleaseView, RolloutView
from releases.selectors.releases import diff_view, dry_run_view, recipes_view, release_view, releases_view
from releases.selectors.rollouts import rollout_view
from releases.services.access import access_dry_run, access_release
from releases.services.dry_runs import dry_run_create
from releases.services.releases import How, release_create, release_resume


@dataclass(frozen=True, slots=True)
class DryRunRequest:
    """A spec file to be looked at; `stage` restricts it to one of the file's. `supersede` and `break_glass` as in a release."""

    yaml: str
    stage: str = ""
    supersede: bool = False
    break_glass: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """A spec file to be made a release; `note` says why.

    `supersede` ends a rollout in flight and takes its place. `break_glass`, a reason, begins in spite of a freeze window.
    `automated` says that no person is there: what was taken back is then refused until a person lifts that (`release-held`).
    `dry_run` names the one that was looked at: what begins is its plan, or it is refused (`plan-changed`, `plan-of-other-text`).
    """

    yaml: str
    stage: str = ""
    note: str = ""
    supersede: bool = False
    break_glass: str = ""
    automated: bool = False
    dry_run: str = ""


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """Why a release may be deployed by automation again."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class CreatedView:
    """A new release and the rollouts that it started, in the order of its stages."""

    release: ReleaseView
    rollouts: tuple[RolloutView, ...]


class ReleasesQuery(TimedQuery):
    """Which releases of a model, by when they were made."""

    before = serializers.IntegerField(default=None, min_value=1, max_value=2**31 - 1, help_text="`next` of the page before")
    stage = WordField(max_length=63, help_text="those that were ever rolled out to it: `prod-us`")
    by = WordField(max_length=150, help_text="who made it")
    held = FlagField(help_text="whether automation may not deploy it")


@dataclass(frozen=True, slots=True)
class ReleasesPage:
    """Releases of a model, newest first; `next` is the `before` of the next page."""

    results: tuple[ReleaseView, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class RecipesPage:
    """The catalogue, all of it."""

    results: tuple[RecipeView, ...]
    next: str | None = None


def number_param(request: Request, name: str, least: int = 1, most: int = 2**31 - 1) -> int | None:
    """A whole number of the query string; None when it is not there."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= most):
        sentence = f"{text[:40]} is not a number from {least} to {most:,}"
        raise InvalidError(f"{name}: {sentence}.", fields={name: [sentence]})
    return int(text)


class DryRunsView(APIView):
    """Ask for a dry run."""

    @extend_schema(request=schema_of(DryRunRequest), responses={202: schema_of(DryRunView)}, summary="Check a spec file and plan it")
    @idempotent
    def post(self, request: Request) -> Response:
        wanted = wire.from_plain(request.data, DryRunRequest)
        access_release(request.user, wanted.yaml, Action.SEE)
        row = dry_run_create(
            yaml=wanted.yaml,
            only_stage=wanted.stage,
            actor=request.user.get_username(),
            supersede=wanted.supersede,
            break_glass=bool(wanted.break_glass.strip()),
        )
        return Response(wire.to_plain(dry_run_view(id=row.pk)), status=202)


class DryRunDetailView(APIView):
    """One dry run."""

    @extend_schema(responses=schema_of(DryRunView), summary="How far a dry run is, and what came of it")
    def get(self, request: Request, id: str) -> Response:
        return Response(wire.to_plain(access_dry_run(request.user, dry_run_view(id=id))))


class ReleasesView(APIView):
    """Create a release."""

    @extend_schema(
        request=schema_of(ReleaseRequest),
        responses={201: schema_of(CreatedView)},
        summary="Create a release and start its rollouts",
    )
    @idempotent
    def post(self, request: Request) -> Response:
        wanted = wire.from_plain(request.data, ReleaseRequest)
        access_release(request.user, wanted.yaml, Action.START, break_glass=wanted.break_glass)
        user, via = request.user.get_username(), via_of(request)
        how = How(supersede=wanted.supersede, break_glass=wanted.break_glass, automated=wanted.automated, dry_run=wanted.dry_run)
        created = release_create(yaml=wanted.yaml, actor=user, via=via, only_stage=wanted.stage, note=wanted.note, how=how)
        release = release_view(model=created.release.model.name, number=created.release.number)
        rollouts = tuple(rollout_view(id=rollout.pk) for rollout in created.rollouts)
        return Response(wire.to_plain(CreatedView(release, rollouts)), status=201)


class ModelReleasesView(APIView):
    """Releases of a model."""

    @extend_schema(
        operation_id="models_releases_list",
        responses=schema_of(ReleasesPage),
        summary="Releases of a model, newest first",
        parameters=[ReleasesQuery],
    )
    def get(self, request: Request, model: str) -> Response:
        access_model(request.user, model)
        wanted = checked(ReleasesQuery, request)
        limit = wanted.pop("limit")
        found = releases_view(model=model, **wanted, limit=limit + 1)
        return Response(wire.to_plain(ReleasesPage(*cut(found, limit, lambda release: release.number))))


class ReleaseDetailView(APIView):
    """One release."""

    @extend_schema(responses=schema_of(ReleaseView), summary="One release, with its spec")
    def get(self, request: Request, model: str, number: int) -> Response:
        access_model(request.user, model)
        return Response(wire.to_plain(release_view(model=model, number=number)))


class ReleaseResumeView(APIView):
    """The hold of a release that was taken back."""

    @extend_schema(request=schema_of(ResumeRequest), responses=schema_of(ReleaseView), summary="Let automation deploy it again")
    @idempotent
    def post(self, request: Request, model: str, number: int) -> Response:
        access_model(request.user, model, Action.START)
        wanted = wire.from_plain(request.data or {}, ResumeRequest)
        release_resume(model=model, number=number, actor=request.user.get_username(), via=via_of(request), reason=wanted.reason)
        return Response(wire.to_plain(release_view(model=model, number=number)))


class ReleaseDiffView(APIView):
    """One release beside another."""

    @extend_schema(
        responses=schema_of(DiffView),
        summary="What differs from another release, by default the one before it",
        parameters=[OpenApiParameter("against", {"type": "integer", "minimum": 1, "maximum": 2**31 - 1})],
    )
    def get(self, request: Request, model: str, number: int) -> Response:
        access_model(request.user, model)
        return Response(wire.to_plain(diff_view(model=model, number=number, against=number_param(request, "against"))))


class RecipesView(APIView):
    """The catalogue."""

    @extend_schema(responses=schema_of(RecipesPage), summary="Recipes that releases can name")
    def get(self, request: Request) -> Response:
        return Response(wire.to_plain(RecipesPage(recipes_view())))
