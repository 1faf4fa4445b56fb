"""Names the app to Django."""

from __future__ import annotations

from django.apps import AppConfig


class FleetsConfig(AppConfig):
    """The `fleets` app."""

    name = "fleets"
    default_auto_field = "django.db.models.BigAutoField"
