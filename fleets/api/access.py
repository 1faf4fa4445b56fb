"""Who may look at nodes and take them out of use: a node serves whichever model, so it takes the role for every one."""

from __future__ import annotations

from denvweb.access import EVERY_MODEL, Action, Person, actions_of
from denvweb.core.errors import ForbiddenError


def access_nodes(user: Person, action: Action = Action.SEE) -> None:
    """Refuse what the person may not do with every model."""
    if action not in actions_of(user, EVERY_MODEL):
        raise ForbiddenError(f"Nodes serve every model: this takes a role that may {action} all of them.", code="role-missing")
