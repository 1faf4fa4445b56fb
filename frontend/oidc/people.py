"""Who of the provider's people is who here: let in or not, linked for good by issuer and subject, with the roles of their groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User
from django.core import signing
from django.db import IntegrityError, transaction

from denvweb.core.errors import ConflictError, InvalidError, NotFoundError
from denvweb.models import Grant
from denvweb.oidc import OidcConfig, Roles
from frontend.models import OidcIdentity
from frontend.oidc.claims import Identity
from frontend.oidc.errors import SignInRefusedError
from metrics.services import event_append

# The journal's words for what no person did; somebody of that name could hide behind them.
_RESERVED = {"system", "nobody", "alarm", "admin", "root"}
_NAMES_TRIED = 20
_LINK_SALT = "denv.oidc.link"
LINK_GOOD_FOR_S = 600


@dataclass(frozen=True, slots=True)
class IdentityView:
    """Somebody at a provider who signs in to an account here."""

    id: str
    issuer: str
    who: str  # their address or name when they were linked
    linked_at: datetime


def account_for(identity: Identity, config: OidcConfig) -> User:
    """The account of somebody who proved who they are, made at their first time; SignInRefusedError when they are not let in.

    Their roles by groups are those of now when this returns.
    """
    try:
        return _account_for(identity, config)
    except IntegrityError:  # two first times at once: the other one has made the account
        return _account_for(identity, config)


@transaction.atomic
def _account_for(identity: Identity, config: OidcConfig) -> User:
    known = OidcIdentity.objects.select_related("account").filter(issuer=identity.issuer, subject=identity.subject).first()
    here_before = _by_email(identity, config) if known is None else None
    if not (admitted(identity, config) or here_before or (known and known.linked)):
        detail = f"{config.name} says you are {identity.words}, who is not let in here. Ask an administrator to let one of your groups in."
        raise SignInRefusedError(detail, code="not-admitted", who=identity.words)
    if known is None:
        account = here_before or _account_make(identity)
        identity_link(identity, account, linked=here_before is not None, config=config)
    else:
        account = known.account
    if not account.is_active:
        raise SignInRefusedError(
            "This account is closed. An administrator can open it again.", code="account-closed", who=account.get_username()
        )
    _roles_set(account, roles_by_groups(identity.groups, config.roles))
    return account


def admitted(identity: Identity, config: OidcConfig) -> bool:
    """Whether somebody is let in by a group, or by the domain of an address that the provider has verified."""
    name, _, domain = identity.email.rpartition("@")
    return not identity.groups.isdisjoint(config.roles) or (bool(name) and domain in config.domains)


def roles_by_groups(groups: frozenset[str], roles: Roles) -> dict[tuple[str, str, str], None]:
    """(model, role, group) that somebody in these groups has, in the order of the settings."""
    return {
        (model, role, group): None
        for group, models in roles.items()
        if group in groups
        for model, found in models.items()
        for role in found
    }


def identity_link(identity: Identity, account: User, *, linked: bool, config: OidcConfig) -> None:
    """From now on they sign in to this account; `linked` when it was there before."""
    OidcIdentity.objects.create(issuer=identity.issuer, subject=identity.subject, account=account, linked=linked, words=identity.words)
    actor = account.get_username()
    what = "now signs in" if linked else "has an account from now on, and signs in"
    event_append(
        kind="account.linked" if linked else "account.created",
        sentence=f"{actor} {what} through {config.name} as {identity.words}",
        actor=actor,
        via="ui",
        evidence={"issuer": identity.issuer, "subject": identity.subject},
    )


def link_token(identity: Identity, account: User) -> str:
    """Carries a proved identity over to the answer of "is this you?", of this account and for ten minutes."""
    told = {"issuer": identity.issuer, "subject": identity.subject, "words": identity.words, "account": account.pk}
    return signing.dumps(told, salt=_LINK_SALT)


def link_redeem(token: str, account: User, config: OidcConfig) -> str:
    """Link it; who it is. InvalidError when it is not whole, too old, or of another account; ConflictError when somebody else has it."""
    try:
        told = signing.loads(token, salt=_LINK_SALT, max_age=LINK_GOOD_FOR_S)
    except signing.BadSignature:
        told = {}
    if told.get("account") != account.pk:
        raise InvalidError("This question is too old, or was put to somebody else. Begin again under Settings.", code="link-bad")
    identity = Identity(told["issuer"], told["subject"], told["words"])
    try:
        with transaction.atomic():
            identity_link(identity, account, linked=True, config=config)
    except IntegrityError:
        if identity_owner(identity) != account:  # this very account: the button was pressed twice
            raise ConflictError(f"{identity.words} signs in to another account already.", code="already-linked") from None
    return identity.words


def identity_owner(identity: Identity) -> User | None:
    """The account that somebody signs in to."""
    known = OidcIdentity.objects.select_related("account").filter(issuer=identity.issuer, subject=identity.subject).first()
    return known.account if known else None


def identities_of(account: User) -> tuple[IdentityView, ...]:
    """Who signs in to the account through a provider, the oldest first."""
    rows = OidcIdentity.objects.filter(account=account).order_by("pk")
    return tuple(IdentityView(str(row.pk), row.issuer, row.words, row.created_at) for row in rows)


def identity_unlink(*, id: str, account: User, via: str) -> None:
    """They sign in to this account no longer; ConflictError when nobody could sign in to it then."""
    with transaction.atomic():
        found = {str(row.pk): row for row in OidcIdentity.objects.select_for_update().filter(account=account)}
        row = found.get(id)
        if row is None:
            raise NotFoundError("There is no such link.")
        if len(found) == 1 and not account.has_usable_password():
            raise ConflictError("You have no password here: without this link you could not sign in again.", code="last-way-in")
        row.delete()
        _roles_set(account, {})
        actor = account.get_username()
        event_append(kind="account.unlinked", sentence=f"{actor} no longer signs in as {row.words}", actor=actor, via=via)


def _by_email(identity: Identity, config: OidcConfig) -> User | None:
    """The one account with the verified address, where that is allowed; never an administrator's, who links it by hand."""
    if not (config.link_by_email and identity.email):
        return None
    found = list(User.objects.filter(email__iexact=identity.email, oidc_identities=None)[:2])
    return found[0] if len(found) == 1 and not found[0].is_superuser else None


def _account_make(identity: Identity) -> User:
    """A new account under a name that nobody has: somebody else's account is never taken over by its name."""
    base = re.sub(r"[^\w.@+-]", "-", identity.name or identity.email or identity.subject, flags=re.ASCII)[:140].strip("-") or "person"
    if base.lower() in _RESERVED:
        base += "-2"
    taken = {name.lower() for name in User.objects.filter(username__istartswith=base).values_list("username", flat=True)}
    tried = (base, *(f"{base}-{number}" for number in range(2, _NAMES_TRIED)))
    name = next((name for name in tried if name.lower() not in taken), None)
    if name is None:
        raise SignInRefusedError(f"Too many accounts are called {base}.", code="no-name-left", who=identity.words)
    return User.objects.create_user(name, email=identity.email)


def _roles_set(account: User, wanted: Mapping[tuple[str, str, str], None]) -> None:
    """Give what the groups give, and take what they no longer do; roles that people gave are left alone."""
    had = {
        (grant.model, grant.role, grant.group): grant for grant in Grant.objects.select_for_update().filter(user=account).exclude(group="")
    }
    name = account.get_username()
    for key in had.keys() - wanted.keys():
        had[key].delete()
        _said("role.taken", f"{name} is no longer {key[1]} of {key[0]}, which group {key[2]} gave", key[0])
    for key in wanted.keys() - had.keys():
        Grant.objects.create(user=account, model=key[0], role=key[1], group=key[2], created_by=f"group {key[2]}"[:150])
        _said("role.given", f"{name} is {key[1]} of {key[0]} by group {key[2]}", key[0])


def _said(kind: str, sentence: str, model: str) -> None:
    event_append(kind=kind, sentence=sentence, model="" if model == "*" else model)
