"""The logs of a pool: what its engines write, as they write it."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from denvweb.access import access_stage
from fleets.domain.types import Role
from fleets.selectors import units_view
from frontend.pages.base import PageRequest, page, whole

TAIL_LINES = 200


@require_safe
@page
def logs(request: PageRequest, model: str, name: str) -> HttpResponse:
    """A pool's log; which one, and of which replica, are a form's fields."""
    stage = f"{model}/{name}"
    access_stage(request.user, stage)
    units = units_view(stage=stage, now=timezone.now())
    sizes = {pool.role.value: max(pool.desired, len(pool.replicas)) for unit in units for pool in unit.pools}
    pool = request.GET.get("pool", "")
    pool = pool if pool in sizes else next(iter(sizes), Role.AGGREGATED.value)
    replica, follow = request.GET.get("replica", ""), request.GET.get("follow", "1") == "1"
    replica = replica if replica.isdecimal() and 0 < int(replica) <= sizes.get(pool, 0) else ""
    query = {"pool": pool, "tail": TAIL_LINES} | ({"replica": replica} if replica else {}) | ({"follow": 1} if follow else {})
    context = {
        "title": f"Logs of {stage}",
        "section": "overview",
        "living": "frontend/_logs.html",
        "model": model,
        "name": name,
        "pools": list(sizes),
        "pool": pool,
        "replicas": [str(number) for number in range(1, sizes.get(pool, 0) + 1)],
        "replica": replica,
        "follow": follow,
        "src": f"/api/v1/stages/{stage}/logs?{urlencode(query)}",
    }
    return whole(request, "logs", context)
