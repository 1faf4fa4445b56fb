"""Who may do what: roles by model. Every face (pages, API, Slack) asks here before it does anything.

Roles add up: whoever may roll back need not be able to go forward, and the other way round. A model that one may not see
does not exist for one: NotFoundError, not ForbiddenError.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, User

from denvweb.core.errors import ForbiddenError, NotFoundError
from denvweb.models import Grant, ModelPolicy

EVERY_MODEL = "*"


class Action(StrEnum):
    """What can be done with a model and its stages."""

    SEE = "see"
    PAUSE = "pause"  # and resume
    ROLL_BACK = "roll back"  # and abort
    SCALE = "scale"  # numbers inside the ranges of the release
    START = "start"  # create releases, which begins their rollouts
    PROMOTE = "promote"  # skip the rest of a watch
    APPROVE = "approve"  # let a rollout that waits for an approval go on
    BREAK_GLASS = "break the glass of"  # go forward in spite of a freeze window, with a reason
    ADMIN = "administer"  # give roles, set the policy and freeze windows


class Role(StrEnum):
    """What a person is for a model."""

    NONE = "none"
    VIEWER = "viewer"
    OPERATOR = "operator"  # on call: stops and goes back, never forward
    DEPLOYER = "deployer"
    APPROVER = "approver"
    ADMIN = "admin"


ALLOWED: Mapping[Role, frozenset[Action]] = {
    Role.NONE: frozenset(),
    Role.VIEWER: frozenset({Action.SEE}),
    Role.OPERATOR: frozenset({Action.SEE, Action.PAUSE, Action.ROLL_BACK, Action.SCALE}),
    Role.DEPLOYER: frozenset({Action.SEE, Action.PAUSE, Action.SCALE, Action.START, Action.PROMOTE}),
    Role.APPROVER: frozenset({Action.SEE, Action.APPROVE, Action.BREAK_GLASS}),
    Role.ADMIN: frozenset(Action),
}

Person = AbstractBaseUser | AnonymousUser


def _roles(user: Person) -> tuple[tuple[str, str], ...]:
    """(model, role) of a person; read once a request, which has a user object of its own."""
    known: tuple[tuple[str, str], ...] | None = getattr(user, "_denv_roles", None)
    if known is None:
        granted = tuple(Grant.objects.filter(user_id=user.pk).values_list("model", "role")) if user.pk else ()
        known = (*granted, (EVERY_MODEL, settings.DEFAULT_ROLE)) if user.pk else ()
        user._denv_roles = known  # type: ignore[union-attr]  # a note on the object, not a field
    return known


def roles_of(user: Person) -> dict[str, list[str]]:
    """All roles of a person by model, what everybody is included."""
    found: dict[str, list[str]] = {}
    for model, role in _roles(user):
        found[model] = sorted({*found.get(model, []), role})
    return found


def actions_of(user: Person, model: str) -> frozenset[Action]:
    """All that a person may do with a model."""
    if isinstance(user, User) and user.is_superuser:
        return ALLOWED[Role.ADMIN]
    found = [ALLOWED[Role(role)] for at, role in _roles(user) if at in (EVERY_MODEL, model)]
    return frozenset().union(*found)


def roles_for(action: Action) -> str:
    """`admin or operator`: the roles that an action takes, as words."""
    return " or ".join(sorted(role for role, actions in ALLOWED.items() if action in actions))


def access_model(user: Person, model: str, action: Action = Action.SEE) -> None:
    """Refuse what the person may not do: NotFoundError when the model is not theirs to see, else ForbiddenError."""
    allowed = actions_of(user, model)
    if Action.SEE not in allowed:
        raise NotFoundError(f"There is no model {model}.")
    if action not in allowed:
        raise ForbiddenError(f"You may not {action} {model}; that takes the role {roles_for(action)}.", code="role-missing")


def access_stage(user: Person, stage: str, action: Action = Action.SEE) -> None:
    """The same for `model/stage`."""
    model = stage.partition("/")[0]
    if Action.SEE not in actions_of(user, model):
        raise NotFoundError(f"There is no stage {stage}.")
    access_model(user, model, action)


def access_approve(user: Person, stage: str, *, started_by: str) -> None:
    """The same for an approval; where the policy wants two people, not by who started it."""
    access_stage(user, stage, Action.APPROVE)
    model = stage.partition("/")[0]
    if user.get_username() == started_by and ModelPolicy.objects.filter(model__in=(EVERY_MODEL, model), approver_differs=True).exists():
        raise ForbiddenError(f"Somebody else has to approve this: you started the rollout of {stage}.", code="approver-must-differ")


@dataclass(frozen=True, slots=True)
class Seen:
    """The models that a person may see; `names` is None for all."""

    names: frozenset[str] | None

    def __contains__(self, model: object) -> bool:
        return self.names is None or not model or model in self.names

    @property
    def only(self) -> Collection[str] | None:
        """For a query: these and what belongs to no model, or None for everything."""
        return None if self.names is None else [*sorted(self.names), ""]


def seen_by(user: Person) -> Seen:
    """What lists may show."""
    if Action.SEE in actions_of(user, EVERY_MODEL):
        return Seen(None)
    return Seen(frozenset(at for at, role in _roles(user) if Action.SEE in ALLOWED[Role(role)]))
