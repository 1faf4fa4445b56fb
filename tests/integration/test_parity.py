"""Faces beside each other: what the pages change can be changed over REST, and whoever has no role is refused each change there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import get_resolver
from drf_spectacular.generators import SchemaGenerator

from denvweb.auth import token_create
from frontend.pages import keys, settings
from frontend.urls import urlpatterns as pages
from metrics.models import Event
from tests.integration.rollouts_world import Demo, release_yaml

# What a page changes, by the name of its address and what follows in it, and the operation of the API that does the same.
TWINS = {
    "logout": "session_end",
    "oidc-link": "",  # a person proves who they are to a provider, in a browser
    "slack-link": "",  # likewise to Slack
    "node-act cordon": "node_cordon",
    "node-act uncordon": "node_uncordon",
    "node-act drain": "node_drain",
    "audit-verify": "audit_verify",
    "access-act give": "grant_create",
    "access-act take": "grant_delete",
    "access-act policy": "policy_set",
    "settings-act token-make": "token_create",
    "settings-act token-revoke": "token_revoke",
    "settings-act session-end": "session_end",
    "settings-act channel-make": "channel_create",
    "settings-act channel-switch": "channel_switch",
    "settings-act channel-delete": "channel_delete",
    "settings-act slack-unlink": "slack_link_delete",
    "settings-act oidc-unlink": "identity_unlink",
    "settings-act freeze-make": "freeze_windows_create",
    "settings-act freeze-delete": "freeze_windows_destroy",
    "release-new": "releases_create",
    "release-fields": "dry_runs_create",
    "release-let-go": "models_releases_resume_create",
    "stage-keys-act create": "key_create",
    "stage-keys-act revoke": "key_revoke",
    "stage-keys-act require": "keys_require",
    "stage-scale": "stages_scale_set",
    "rollback": "stages_rollback",
    "rollout-act promote": "rollouts_promote",
    "rollout-act pause": "rollouts_pause",
    "rollout-act resume": "rollouts_resume",
    "rollout-act abort": "rollouts_abort",
}
# Addresses of pages that only show something, and what else takes a POST without changing anything of denv's; with what tells the same.
_STAGE = "/stages/{model}/{name}"
_RELEASE = "/models/{model}/releases/{number}"
SHOWS: dict[str, tuple[str, ...]] = {
    "overview": ("/stages", "/rollouts", "/events", "/stream"),
    "attention": ("/stages",),
    "fleets": ("/fleets", "/fleets/{name}", "/nodes", "/placement/defrag"),
    "node": ("/nodes/{name}", "/nodes/{name}/drain-plan"),
    "events": ("/events",),
    "recipes": ("/recipes",),
    "access": ("/grants", "/policies/{policy_model}", "/me", "/events"),
    "settings": ("/tokens", "/sessions", "/identities", "/slack", "/slack/links", "/channels", "/freeze-windows"),
    "releases": ("/models/{model}/releases",),
    "dry-run": ("/dry-runs/{id}",),
    "release": (_RELEASE, f"{_RELEASE}/diff"),
    "release-rollouts": ("/rollouts",),
    "stage": (_STAGE, f"{_STAGE}/rollout", f"{_STAGE}/events"),
    "stage-units": (_STAGE, f"{_STAGE}/placement"),
    "stage-charts": (f"{_STAGE}/series", f"{_STAGE}/metrics"),
    "stage-logs": (f"{_STAGE}/logs",),
    "stage-keys": (f"{_STAGE}/keys",),
    "what-if": (f"{_STAGE}/what-if",),
    "ratio": (f"{_STAGE}/scale", f"{_STAGE}/what-if"),
    "way-back": (f"{_STAGE}/preflight",),
    "rollout": ("/rollouts/{id}",),
    "login": (),  # a browser's affairs, of which a program knows nothing
    "oidc-start": (),
    "oidc-callback": (),
    "oidc-logout": (),
    "plotly": (),
}
ACTS = {
    "node-act": ("cordon", "uncordon", "drain"),
    "access-act": ("give", "take", "policy"),
    "settings-act": tuple(settings.ACTS),
    "stage-keys-act": tuple(keys.ACTS),
    "rollout-act": ("promote", "pause", "resume", "abort"),
}
# Operations on what is one's own, which takes no role.
OWN = {"token_create", "token_revoke", "session_end", "identity_unlink", "slack_link_delete", "dry_runs_create"}
BODIES: dict[str, Any] = {
    "channel_create": {"kind": "webhook", "name": "ops", "address": "https://example.com/hook"},
    "channel_switch": {"enabled": False},
    "freeze_windows_create": {
        "zone": "UTC", "reason": "x", "begins_at": "2030-01-01T00:00:00Z", "ends_at": "2030-01-02T00:00:00Z", "model": "ds-flash",
    },
    "grant_create": {"user": "somebody", "model": "ds-flash", "role": "viewer"},
    "join_token_create": {"fleet": "gb200-use1"},
    "key_create": {"label": "a client"},
    "keys_require": {"required": True},
    "policy_set": {"approver_differs": True},
    "releases_create": {"yaml": release_yaml(block=64)},
    "secret_set": {"name": "hf-read", "value": "hf_x"},
    "slack_set": {"team": "T0123456789"},
    "stages_scale_set": {"units": 2},
}  # fmt: skip
PLACES = {"model": "ds-flash", "policy_model": "ds-flash", "number": "1", "id": "1"}
NAMES = {"stages": "prod-us", "nodes": "gb200-use1-d01-n01", "fleets": "gb200-use1", "": "hf-read"}  # by the part of the path before it

pytestmark = pytest.mark.django_db


def operations() -> Iterator[tuple[str, str, str]]:
    """Path, method and name of all that change something."""
    document = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]  # the generator is untyped
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in ("post", "put", "patch", "delete"):
                yield path, method, operation["operationId"]


def test_each_change_on_a_page_has_its_twin_over_rest() -> None:
    acts = {f"{name} {act}".strip() for name in {str(page.name) for page in pages} - SHOWS.keys() for act in ACTS.get(name, ("",))}
    slack = {act for act in acts if act.startswith("slack") and act != "slack-link"}  # what Slack itself calls
    assert acts - slack == set(TWINS)
    assert {twin for twin in TWINS.values() if twin} <= {name for *_, name in operations()} | {"audit_verify"}
    assert all(get_resolver().reverse_dict.getlist(act.split()[0]) for act in TWINS)


def test_what_each_page_shows_is_told_over_rest() -> None:
    document = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]  # the generator is untyped
    told = {path.removeprefix("/api/v1") for path, methods in document["paths"].items() if "get" in methods}
    assert {path for paths in SHOWS.values() for path in paths} <= told


def test_each_operation_that_changes_something_is_refused_to_who_has_no_role_and_the_journal_says_so(settings: Any) -> None:
    settings.DEFAULT_ROLE = "none"
    Demo().first()
    User.objects.create_user("somebody")
    api = Client(headers={"authorization": f"Bearer {token_create(user=User.objects.create_user('nobody'))}"})
    tried = 0
    for path, method, name in operations():
        if name in OWN:
            continue
        before = Event.objects.latest("seq").seq
        kind = next((kind for kind in NAMES if f"/{kind}/" in path), "")
        place = path.format(**PLACES, name=NAMES[kind])
        answer = getattr(api, method)(place, BODIES.get(name, {}), content_type="application/json")
        assert answer.status_code in (403, 404), (name, answer.status_code, answer.content)
        rows = [(event.kind, event.actor, event.via) for event in Event.objects.filter(seq__gt=before)]
        assert rows == [("change.refused", "nobody", "api")], (name, rows)
        tried += 1
    assert tried >= 25
