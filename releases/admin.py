"""The releases app in Django's admin: for looking. Changes go through the API, where they are checked and journalled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model as DjangoModel
from django.http import HttpRequest

from releases.models import DryRun, FreezeWindow, Model, Release, RollbackRequest, Rollout, Stage

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin  # it is generic for the type checker only


class ReadOnlyAdmin(_ModelAdmin):
    """Shows rows and changes none."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: DjangoModel | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: DjangoModel | None = None) -> bool:
        return False


for model in (DryRun, FreezeWindow, Model, Release, RollbackRequest, Rollout, Stage):
    admin.site.register(model, ReadOnlyAdmin)
