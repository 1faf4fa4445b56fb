"""API tokens: an `id.secret` pair of which only a hash is kept."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class ApiToken(models.Model):
    """A bearer token of a person, or of a program that acts for one."""

    class Scope(models.TextChoices):
        """What the token is good for."""

        API = "api", "everything that its owner may do"
        ROUTER = "router", "a router: read tables, send reports"

    id = models.CharField(primary_key=True, max_length=40)
    secret_hash = models.CharField(max_length=64)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    scope = models.CharField(max_length=10, choices=Scope.choices, default=Scope.API)
    label = models.CharField(max_length=80, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.id} ({self.label or self.scope})"
