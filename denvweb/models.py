"""API tokens, roles of people by model, and the answers to requests that may be sent twice."""

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


class Grant(models.Model):
    """A role of a person for one model, or for `*`. What a role may do is in denvweb.access."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="grants")
    model = models.CharField(max_length=63)
    role = models.CharField(max_length=10)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    group = models.CharField(max_length=150, blank=True, default="")  # of the sign-in provider; it comes and goes with each sign-in

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "model", "role", "group"], name="grant_once")]

    def __str__(self) -> str:
        return f"{self.user_id}: {self.role} of {self.model}"


class ModelPolicy(models.Model):
    """Rules of one model, or of `*`."""

    model = models.CharField(max_length=63, unique=True)
    approver_differs = models.BooleanField(default=False)  # who approves must not be who started

    def __str__(self) -> str:
        return self.model


class IdempotencyKey(models.Model):
    """The answer to a request that may be sent twice: the second time it is answered with it, and nothing else happens."""

    user = models.CharField(max_length=150)
    key = models.CharField(max_length=200)
    body_hash = models.CharField(max_length=64)  # the same key with another body is refused
    status = models.PositiveSmallIntegerField()
    response = models.JSONField(null=True)  # null inside the transaction that makes it, and where it held a secret
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="idempotency_once")]

    def __str__(self) -> str:
        return f"{self.user}: {self.key}"
