"""Who may see what of fleets, and take nodes out of use: a node serves whichever model, so that takes the role for every one."""

from __future__ import annotations

from collections.abc import Sequence

from denvweb.access import EVERY_MODEL, Action, Person, actions_of, seen_by
from denvweb.core.errors import ForbiddenError
from fleets.domain.veil import veiled
from fleets.domain.views import FleetMap
from fleets.selectors import fleet_maps


def access_nodes(user: Person, action: Action = Action.SEE) -> None:
    """Refuse what the person may not do with every model."""
    if action not in actions_of(user, EVERY_MODEL):
        raise ForbiddenError(f"Nodes serve every model: this takes a role that may {action} all of them.", code="role-missing")


def access_fleet_maps(user: Person, *, names: Sequence[str] | None = None) -> tuple[FleetMap, ...]:
    """Maps of fleets, of all without `names`; what models that the person may not see hold is in use, and nameless."""
    seen = seen_by(user)
    return tuple(veiled(fleet, seen) for fleet in fleet_maps(names=names))
