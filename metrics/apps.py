"""Names the app to Django."""

from __future__ import annotations

from django.apps import AppConfig


class MetricsConfig(AppConfig):
    """The `metrics` app."""

    name = "metrics"
    default_auto_field = "django.db.models.BigAutoField"
