"""Which OpenID Connect provider people may sign in through, and who of them is let in: read from DENV_OIDC_* once, when denv starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import yaml

from denvweb import env

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
Roles = Mapping[str, Mapping[str, tuple[str, ...]]]  # group -> model or `*` -> roles


@dataclass(frozen=True, slots=True)
class OidcConfig:
    """One provider, and whom denv lets in through it."""

    issuer: str  # exactly as the provider writes it into its tokens
    client_id: str
    client_secret: str  # empty for a public client, which PKCE alone protects
    name: str  # on the button
    scopes: str
    groups_claim: str
    roles: Roles  # a person in any of these groups is let in, with its roles
    domains: tuple[str, ...]  # so is whoever has a verified address in one of these, with no more than the default role
    link_by_email: bool  # a verified address that is one account's signs in to that account
    session_s: int  # after which one signs in anew, and roles are looked up anew


def oidc_from_env() -> OidcConfig | None:
    """The provider, None when there is none; ValueError names the variable that is wrong, so that denv does not start half open."""
    issuer = env.read("DENV_OIDC_ISSUER")
    if not issuer:
        return None
    if not is_safe(issuer):
        raise ValueError(f"DENV_OIDC_ISSUER must be an https:// address, not {issuer!r}")
    client_id = env.read("DENV_OIDC_CLIENT_ID")
    if not client_id:
        raise ValueError("DENV_OIDC_CLIENT_ID is missing: the provider gives it when denv is registered there")
    scopes = env.read("DENV_OIDC_SCOPES", "openid profile email")
    if "openid" not in scopes.split():
        raise ValueError("DENV_OIDC_SCOPES must hold `openid`: without it the provider proves nothing")
    hours = env.read("DENV_OIDC_SESSION_HOURS", "12")
    if not (hours.isdecimal() and 0 < int(hours) <= 24 * 30):
        raise ValueError("DENV_OIDC_SESSION_HOURS must be a whole number from 1 to 720")
    return OidcConfig(
        issuer=issuer,
        client_id=client_id,
        client_secret=env.read("DENV_OIDC_CLIENT_SECRET"),
        name=env.read("DENV_OIDC_NAME") or urlsplit(issuer).hostname or issuer,
        scopes=scopes,
        groups_claim=env.read("DENV_OIDC_GROUPS_CLAIM", "groups"),
        roles=parse_roles(env.read("DENV_OIDC_ROLES")),
        domains=tuple(filter(None, (domain.lower().removeprefix("@") for domain in env.read_list("DENV_OIDC_DOMAINS")))),
        link_by_email=env.read_bool("DENV_OIDC_LINK_BY_EMAIL"),
        session_s=int(hours) * 3600,
    )


def parse_roles(text: str) -> Roles:
    """`{ml-oncall: {ds-flash: operator, "*": [viewer]}}` in YAML or JSON; ValueError says what does not fit."""
    try:
        found = yaml.safe_load(text) if text else {}
    except yaml.YAMLError as error:
        raise ValueError(f"DENV_OIDC_ROLES is no YAML: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("DENV_OIDC_ROLES must map groups to models and their roles, as in {ml-oncall: {ds-flash: operator}}")
    return {_name(group, 150): _models(group, models) for group, models in found.items()}


def _models(group: object, models: object) -> Mapping[str, tuple[str, ...]]:
    if models is None:
        return {}
    if not isinstance(models, dict):
        raise ValueError(f"DENV_OIDC_ROLES: group {group} must map models to roles, as in {{ds-flash: operator}}")
    return {_name(model, 63): _roles(found) for model, found in models.items()}


def _roles(found: object) -> tuple[str, ...]:
    return tuple(_name(role, 10) for role in (found if isinstance(found, list) else [found]))


def _name(value: object, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise ValueError(f"DENV_OIDC_ROLES: {value!r} must be a text of 1 to {most} characters")
    return value


def is_safe(url: str) -> bool:
    """Whether secrets may be sent there: https, or this very machine."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK))
    except ValueError:
        return False
