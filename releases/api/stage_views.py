"""REST: stages, and what a rollback of one would do."""

from __future__ import annotations

from dataclasses import dataclass

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import access_stage, seen_by
from denvweb.api import schema_of
from denvweb.core import wire
from denvweb.core.errors import InvalidError
from denvweb.listing import MOST_PER_PAGE, ChoiceOfField, ListQuery, WordField, checked, cut
from releases.domain.views import STAGE_STATES, PreflightView, StageView
from releases.selectors.heads import stages_found
from releases.selectors.stages import preflight_view, stage_view, stages_view


class StagesQuery(ListQuery):
    """Which stages. A page holds all that most installations have."""

    limit = serializers.IntegerField(default=MOST_PER_PAGE, min_value=1, max_value=MOST_PER_PAGE, help_text="how many, at most")
    model = WordField(max_length=63)
    state = ChoiceOfField(STAGE_STATES)
    fleet = WordField(max_length=63)
    after = WordField(help_text="`next` of the page before")


@dataclass(frozen=True, slots=True)
class StagesPage:
    """Stages by model and position; `next` is the `after` of the next page."""

    results: tuple[StageView, ...]
    next: str | None = None


class StagesView(APIView):
    """All stages."""

    @extend_schema(operation_id="stages_list", parameters=[StagesQuery], responses=schema_of(StagesPage))
    def get(self, request: Request) -> Response:
        """Every stage with its units, alarms and rollout."""
        wanted = checked(StagesQuery, request)
        limit = wanted.pop("limit")
        keys, following = cut(stages_found(**wanted, limit=limit + 1, models=seen_by(request.user).names), limit, str)
        return Response(wire.to_plain(StagesPage(stages_view(keys=keys) if keys else (), following)))


class StageDetailView(APIView):
    """One stage."""

    @extend_schema(operation_id="stages_retrieve", responses=schema_of(StageView))
    def get(self, request: Request, model: str, name: str) -> Response:
        """The stage as it stands."""
        access_stage(request.user, f"{model}/{name}")
        return Response(wire.to_plain(stage_view(stage=f"{model}/{name}")))


class PreflightDetailView(APIView):
    """What a rollback would do now."""

    @extend_schema(
        operation_id="stages_preflight",
        parameters=[OpenApiParameter("to", OpenApiTypes.INT, description="A release number; the one before by default.")],
        responses=schema_of(PreflightView),
    )
    def get(self, request: Request, model: str, name: str) -> Response:
        """Whether it is possible, with what capacity, and how long until all of it is back."""
        access_stage(request.user, f"{model}/{name}")
        text = request.query_params.get("to", "")
        if text and not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InvalidError(f"to: {text[:40]} is not a release number.", fields={"to": [f"{text[:40]} is not a release number"]})
        return Response(wire.to_plain(preflight_view(stage=f"{model}/{name}", to=int(text) if text else None)))
