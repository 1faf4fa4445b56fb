"""Roles by model, and the rules of a model: given, taken and set by whoever administers it; `*` is for superusers."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db import transaction

from denvweb.access import EVERY_MODEL, Action, access_model, actions_of
from denvweb.core.errors import ConflictError, ForbiddenError, NotFoundError
from denvweb.models import Grant, ModelPolicy
from metrics.services import event_append


@dataclass(frozen=True, slots=True)
class GrantView:
    """One role of one person."""

    id: int
    user: str
    model: str  # or `*`
    role: str
    created_by: str
    group: str = ""  # of the sign-in provider, with which it comes and goes


def grants_of(user: User) -> tuple[GrantView, ...]:
    """The roles that the person may change."""
    rows = Grant.objects.select_related("user").order_by("model", "user__username", "role")
    return tuple(_view(row) for row in rows if user.is_superuser or Action.ADMIN in actions_of(user, row.model))


def grant_give(*, name: str, model: str, role: str, by: User, via: str) -> GrantView:
    """Give somebody a role; once more changes nothing."""
    _access_roles(by, model)
    user = User.objects.filter(username=name).first()
    if user is None:
        raise NotFoundError(f"There is nobody named {name}.")
    with transaction.atomic():
        grant, made = Grant.objects.select_related("user").get_or_create(
            user=user, model=model, role=role, group="", defaults={"created_by": by.get_username()}
        )
        if made:
            _write_down(by, via, "role.given", f"made {name} {role} of {model}", model)
    return _view(grant)


def grant_take(*, id: int, by: User, via: str) -> None:
    """Take a role away."""
    grant = Grant.objects.select_related("user").filter(pk=id).first()
    if grant is None:
        raise NotFoundError("There is no such role.")
    _access_roles(by, grant.model)
    if grant.group:
        cure = "take the person out of it there, or close the account"
        raise ConflictError(f"This role comes with group {grant.group} at each sign-in: {cure}.", code="role-of-a-group")
    with transaction.atomic():
        grant.delete()
        _write_down(by, via, "role.taken", f"took {grant.role} of {grant.model} from {grant.user.get_username()}", grant.model)


def policies() -> dict[str, bool]:
    """Models, and `*`, whose approver must not be who started."""
    return dict(ModelPolicy.objects.values_list("model", "approver_differs"))


def policy_set(*, model: str, approver_differs: bool, by: User, via: str) -> None:
    """Whether two people are needed."""
    _access_roles(by, model)
    with transaction.atomic():
        ModelPolicy.objects.update_or_create(model=model, defaults={"approver_differs": approver_differs})
        who = "somebody else than who started it" if approver_differs else "any approver"
        _write_down(by, via, "policy.set", f"wants {who} to approve rollouts of {model}", model)


def _access_roles(user: User, model: str) -> None:
    if model == EVERY_MODEL and not user.is_superuser:
        raise ForbiddenError("Only an administrator may decide about all models at once.")
    access_model(user, model, Action.ADMIN)


def _view(grant: Grant) -> GrantView:
    return GrantView(grant.pk, grant.user.get_username(), grant.model, grant.role, grant.created_by, grant.group)


def _write_down(by: User, via: str, kind: str, sentence: str, model: str) -> None:
    actor = by.get_username()
    event_append(kind=kind, sentence=f"{actor} {sentence}", actor=actor, via=via, model="" if model == EVERY_MODEL else model)
