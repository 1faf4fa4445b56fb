"""Fleets over REST."""

from __future__ import annotations

from dataclasses import dataclass

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.api import schema_of
from denvweb.core import wire
from denvweb.core.errors import NotFoundError
from denvweb.listing import NamesQuery, by_name
from fleets.api.access import access_fleet_maps
from fleets.domain.views import FleetMap
from fleets.selectors import fleet_names


@dataclass(frozen=True, slots=True)
class FleetMapPage:
    """Fleets by name; `next` is the `after` of the next page."""

    results: tuple[FleetMap, ...]
    next: str | None = None


class FleetListView(APIView):
    """All fleets."""

    @extend_schema(operation_id="fleets_list", parameters=[NamesQuery], responses=schema_of(FleetMapPage))
    def get(self, request: Request) -> Response:
        """Every fleet as a map of its GPUs; what models that the caller may not see hold is in use, and nameless."""
        names, following = by_name(fleet_names(), request, str)
        return Response(wire.to_plain(FleetMapPage(access_fleet_maps(request.user, names=names), following)))


class FleetDetailView(APIView):
    """One fleet."""

    @extend_schema(operation_id="fleets_retrieve", responses=schema_of(FleetMap))
    def get(self, request: Request, name: str) -> Response:
        """One fleet as a map of its GPUs."""
        found = access_fleet_maps(request.user, names=[name])
        if not found:
            raise NotFoundError(f"There is no fleet {name}.", code="fleet-unknown")
        return Response(wire.to_plain(found[0]))
