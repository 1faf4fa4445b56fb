"""Names the app to Django."""

from __future__ import annotations

from django.apps import AppConfig


class ReleasesConfig(AppConfig):
    """The `releases` app."""

    name = "releases"
    default_auto_field = "django.db.models.BigAutoField"
