"""Brings fleets towards what they should be. Every pass looks at everything, and is right whatever passes before it did or left."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from denvweb.failpoints import reach
from fleets.reconcile.nodes import nodes_look
from fleets.reconcile.routes import routes_look
from fleets.reconcile.units import units_look
from fleets.services.logs import log_asks_forget


def reconcile(now: datetime | None = None) -> None:
    """One pass: nodes by their leases, units by their ranks, tables and figures by both."""
    now = now or timezone.now()
    nodes_look(now)
    reach("fleets.after-nodes")
    units_look(now)
    reach("fleets.after-units")
    routes_look(now)
    log_asks_forget(now=now)
    reach("fleets.after-routes")
