"""/healthz: the process answers. /readyz: it also reaches what it needs, and says which part it does not."""

from __future__ import annotations

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse


def healthz(request: HttpRequest) -> JsonResponse:
    """200 as long as the process serves."""
    return JsonResponse({"status": "ok"})


def _database_problem() -> str:
    try:
        executor = MigrationExecutor(connection)
        pending = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError as error:
        return f"PostgreSQL does not answer: {error}".strip()
    return f"{len(pending)} migrations are not applied; run `python manage.py migrate`" if pending else ""


def _redis_problem() -> str:
    try:
        client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1)
        client.ping()
        client.close()
    except redis.RedisError as error:
        return f"Redis does not answer: {error}"
    return ""


def readyz(request: HttpRequest) -> JsonResponse:
    """200 when the database answers and is migrated.

    Redis away is said, but is no reason to send nobody here: hints are lost, truth is not.
    """
    problems = {"database": _database_problem(), "redis": _redis_problem()}
    ready = not problems["database"]
    checks = {name: problem or "ok" for name, problem in problems.items()}
    return JsonResponse({"status": "ok" if ready else "not ready", "checks": checks}, status=200 if ready else 503)
