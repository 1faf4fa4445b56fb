"""REST: freeze windows, and who may go forward in spite of one."""

from __future__ import annotations

from dataclasses import dataclass

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from denvweb.access import seen_by
from denvweb.api import schema_of
from denvweb.auth import via_of
from denvweb.core import wire
from denvweb.core.errors import NotFoundError
from denvweb.idempotency import idempotent
from denvweb.listing import NamesQuery, by_name, time_key
from releases.domain.freeze_reader import FreezeRequest
from releases.domain.views import FreezeWindowView
from releases.selectors.freezes import freeze_window_view, freeze_windows_view
from releases.services.access import access_freeze
from releases.services.freezes import freeze_window_create, freeze_window_delete


@dataclass(frozen=True, slots=True)
class FreezeWindowsPage:
    """The windows that the caller may see, oldest first."""

    results: tuple[FreezeWindowView, ...]
    next: str | None = None


class FreezeWindowsView(APIView):
    """All freeze windows."""

    @extend_schema(operation_id="freeze_windows_list", parameters=[NamesQuery], responses=schema_of(FreezeWindowsPage))
    def get(self, request: Request) -> Response:
        """When nothing goes forward, and whether that is now."""
        seen = seen_by(request.user)
        found = (view for view in freeze_windows_view() if view.model in seen)
        return Response(wire.to_plain(FreezeWindowsPage(*by_name(found, request, lambda one: time_key(one.created_at, one.id)))))

    @extend_schema(operation_id="freeze_windows_create", request=schema_of(FreezeRequest), responses={201: schema_of(FreezeWindowView)})
    @idempotent
    def post(self, request: Request) -> Response:
        """Set a window: recurring by days and local times, or once. Rollbacks are exempt from it."""
        asked = wire.from_plain(request.data, FreezeRequest)
        access_freeze(request.user, asked.model)
        row = freeze_window_create(asked=asked, actor=request.user.get_username(), via=via_of(request))
        return Response(wire.to_plain(freeze_window_view(id=row.pk)), status=201)


class FreezeWindowDetailView(APIView):
    """One freeze window."""

    @extend_schema(operation_id="freeze_windows_destroy", responses={204: None})
    def delete(self, request: Request, id: str) -> Response:
        """Remove it; what it held goes on."""
        found = next((view for view in freeze_windows_view() if view.id == id and view.model in seen_by(request.user)), None)
        if found is None:
            raise NotFoundError(f"There is no freeze window {id}.")
        access_freeze(request.user, found.model)
        freeze_window_delete(id=id, actor=request.user.get_username(), via=via_of(request))
        return Response(status=204)
