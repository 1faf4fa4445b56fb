"""The project as an app: it owns API tokens, and binds Celery."""

from __future__ import annotations

from django.apps import AppConfig


class DenvwebConfig(AppConfig):
    """Celery is bound here and not in `denvweb/__init__.py`, which stays empty so that agents start without it."""

    name = "denvweb"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from denvweb import celery

        celery.app.set_default()
