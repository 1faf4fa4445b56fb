"""Names the app to Django."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured


class FrontendConfig(AppConfig):
    """The `frontend` app."""

    name = "frontend"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Refuse to start with roles that do not exist: at a sign-in it would be too late to say so."""
        from denvweb.access import Role  # accounts, which it knows, are there only by now

        given = {role for models in (settings.OIDC.roles if settings.OIDC else {}).values() for roles in models.values() for role in roles}
        if unknown := given - {role.value for role in Role}:
            known = ", ".join(role.value for role in Role if role is not Role.NONE)
            raise ImproperlyConfigured(f"DENV_OIDC_ROLES: there is no role {', '.join(sorted(unknown))}; there are {known}")
