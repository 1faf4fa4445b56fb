"""Placement over REST: why units are where they are, and what would open a domain."""

from __future__ import annotations

from dataclasses import dataclass

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import access_stage
from denvweb.api import schema_of
from denvweb.core import wire
from fleets.api.access import access_nodes
from fleets.domain.defrag import DefragAdvice
from fleets.domain.explain import PlacementExplained
from fleets.selectors import defrag_advice, placement_explained


@dataclass(frozen=True, slots=True)
class DefragPage:
    """Advice for each fleet."""

    results: tuple[DefragAdvice, ...]
    next: str | None = None


class StagePlacementView(APIView):
    """GET /stages/{model}/{stage}/placement."""

    @extend_schema(responses=schema_of(PlacementExplained), operation_id="stage_placement")
    def get(self, request: Request, model: str, name: str) -> Response:
        """Why each unit of the stage is where it is, and what each fleet says to one more."""
        access_stage(request.user, f"{model}/{name}")
        return Response(wire.to_plain(placement_explained(stage=f"{model}/{name}")))


class DefragView(APIView):
    """GET /placement/defrag."""

    @extend_schema(
        responses=schema_of(DefragPage), operation_id="placement_defrag", parameters=[OpenApiParameter("fleet", OpenApiTypes.STR)]
    )
    def get(self, request: Request) -> Response:
        """Which moves would open whole domains; nothing is moved."""
        access_nodes(request.user)
        return Response(wire.to_plain(DefragPage(defrag_advice(fleet=request.query_params.get("fleet", "")))))
