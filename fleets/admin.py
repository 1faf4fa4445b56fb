"""Fleets in Django's admin: to look at, not to change. What should be is changed through services only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from fleets.models import Fleet, GpuClaim, JoinToken, Node, Rank, Replica, Router, RouteState, Unit

if TYPE_CHECKING:  # generic for the type checker alone
    _Base = admin.ModelAdmin[Any]
else:
    _Base = admin.ModelAdmin


class ReadOnlyAdmin(_Base):
    """No form changes anything."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Fleet, RouteState, Router, GpuClaim)
class PlainAdmin(ReadOnlyAdmin):
    """Rows under their names."""


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    """Nodes, by what is believed of them."""

    list_display = ["name", "domain", "state", "cordoned", "last_report_at", "generation", "observed_generation"]
    list_filter = ["state", "cordoned"]
    exclude = ["secret_hash"]


@admin.register(JoinToken)
class JoinTokenAdmin(ReadOnlyAdmin):
    """Join tokens, without what they hide."""

    list_display = ["id", "fleet", "created_by", "expires_at", "used_at"]
    exclude = ["secret_hash"]


@admin.register(Unit)
class UnitAdmin(ReadOnlyAdmin):
    """Serving units."""

    list_display = ["id", "stage", "slot", "release", "domain", "desired", "routable", "failed"]
    list_filter = ["stage", "desired"]


@admin.register(Replica)
class ReplicaAdmin(ReadOnlyAdmin):
    """Replicas."""

    list_display = ["id", "unit", "role", "ordinal", "attempt", "release", "desired", "retired"]


@admin.register(Rank)
class RankAdmin(ReadOnlyAdmin):
    """Ranks."""

    list_display = ["id", "replica", "node", "index", "port", "state", "restarts", "detail"]
    list_filter = ["state"]
