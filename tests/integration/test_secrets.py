"""Secrets of engines: stored encrypted, written and never read, given only to nodes that run what names them, and kept out of sight."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from denvweb.access import Role as Part
from denvweb.core.errors import ConflictError
from denvweb.core.ids import random_id
from denvweb.models import Grant
from fleets.agent import state
from fleets.agent.engines import launch_order
from fleets.domain.protocol import NodeFacts
from fleets.domain.types import Role, UnitSpec
from fleets.engines.base import LaunchCommand
from fleets.models import StoredSecret
from fleets.selectors import node_snapshot
from fleets.services import secret_remove, secret_set
from metrics.selectors import events_view
from releases.catalog import catalog
from releases.domain.findings import secret_findings
from releases.domain.generations import pool_generation
from releases.domain.spec import ReleaseFile, parse
from tests.agent_fakes import rank
from tests.domain.releases_world import DS_FLASH
from tests.integration.fleets_world import World, unit_spec

VALUE = "hf_thisisnotarealtoken0000"


def _naming(name: str) -> UnitSpec:
    spec = unit_spec()
    pools = tuple(replace(pool, engine=replace(pool.engine, secrets={"HF_TOKEN": name})) for pool in spec.pools)
    return replace(spec, pools=pools)


@pytest.mark.django_db
def test_only_nodes_that_run_it_have_it_and_a_new_value_reaches_them_at_once() -> None:
    secret_set(name="hf-read", value=VALUE, model="ds-flash", actor="ada")
    secret_set(name="other", value="unused-value", model="*", actor="ada")
    world = World(domains=2, nodes=4)
    world.unit(_naming("hf-read"))
    world.settle()
    having = {name: node_snapshot(node=name).secrets for name in world.agents}
    assert set(map(str, having.values())) == {str({"hf-read": VALUE}), "{}"}
    users = {name for name, secrets in having.items() if secrets}
    assert users == {name for name in world.agents if "-d01-" in name}
    before = {name: node_snapshot(node=name).generation for name in world.agents}
    secret_set(name="hf-read", value="hf_rotated00000000000000", model="ds-flash", actor="ada")
    after = {name: node_snapshot(node=name) for name in world.agents}
    assert {name for name in after if after[name].generation > before[name]} == users
    assert all(after[name].secrets == {"hf-read": "hf_rotated00000000000000"} for name in users)
    with pytest.raises(ConflictError, match="is used by ds-flash/prod-us"):
        secret_remove(name="hf-read", actor="ada")
    secret_remove(name="other", actor="ada")


@pytest.mark.django_db
def test_the_database_and_the_journal_hold_no_value() -> None:
    secret_set(name="hf-read", value=VALUE, model="*", actor="ada")
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(s)::text FROM fleets_storedsecret s UNION ALL SELECT row_to_json(e)::text FROM metrics_event e")
        assert VALUE not in str(cursor.fetchall())
    assert [event.sentence for event in events_view()] == ["ada stored secret hf-read for every model"]


@pytest.mark.django_db
def test_over_rest_it_is_written_and_never_read(client: Client, settings: Any) -> None:
    settings.DEFAULT_ROLE = "viewer"
    ada = User.objects.create_user("ada")
    Grant.objects.create(user=ada, model="ds-flash", role=Part.ADMIN, created_by="t")
    client.force_login(ada)

    def post(**body: str) -> tuple[int, str]:
        answer = client.post("/api/v1/secrets", body, content_type="application/json", headers={"Idempotency-Key": random_id("idem", 20)})
        assert VALUE not in answer.content.decode()
        return answer.status_code, answer.json().get("code", "")

    assert post(name="hf-read", value=VALUE, model="ds-flash") == (201, "")
    assert post(name="hf-read", value=VALUE + "1", model="ds-flash") == (200, "")
    assert post(name="hf-read", value=VALUE) == (403, "role-missing")
    assert post(name="HF", value=VALUE, model="ds-flash") == (400, "bad-secret-name")
    assert post(name="x", value="", model="ds-flash") == (400, "bad-secret-value")
    listed = client.get("/api/v1/secrets")
    assert VALUE not in listed.content.decode()
    assert [(one["name"], one["version"], one["set_by"]) for one in listed.json()["results"]] == [("hf-read", 2, "ada")]
    client.force_login(User.objects.create_user("bob"))
    assert client.get("/api/v1/secrets").json()["results"] == []
    assert client.delete("/api/v1/secrets/hf-read").status_code == 404
    client.force_login(ada)
    assert client.delete("/api/v1/secrets/hf-read").status_code == 204
    assert not StoredSecret.objects.exists()


def test_an_engine_has_it_in_its_environment_or_in_a_file_and_never_in_its_arguments(tmp_path: Path) -> None:
    state.prepare(tmp_path)
    spec, facts = rank("k-1"), NodeFacts("n1", "f", "d01", "GB200", 4, "127.0.0.1", 20_000, 64)
    given = {"HF_TOKEN": VALUE, "CERT_FILE": "-----BEGIN"}
    order = launch_order(LaunchCommand(("vllm", "serve")), spec, facts, "e-1", tmp_path, given)
    assert order.env["HF_TOKEN"] == VALUE
    path = Path(order.env["CERT_FILE"])
    assert path.read_text() == "-----BEGIN"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not any(VALUE in word for word in order.argv)
    state.drop_secrets(tmp_path, "k-1")
    assert not path.exists()


def test_a_release_names_its_secrets_and_the_dry_run_says_which_are_not_there() -> None:
    named = DS_FLASH.replace("  topology:", "  secrets: { HF_TOKEN: hf-read, CERT_FILE: cert }\n  topology:", 1)
    file = parse(named)
    assert isinstance(file, ReleaseFile)
    assert file.release.secrets == {"HF_TOKEN": "hf-read", "CERT_FILE": "cert"}
    (missing,) = secret_findings(file.release, {"hf-read": "*", "cert": "llama"})
    assert (missing.code, missing.sentence) == (
        "secret-unknown",
        "secrets.CERT_FILE names cert, and no such secret is stored for ds-flash; `denv secret set cert` stores it",
    )
    assert secret_findings(file.release, {"hf-read": "*", "cert": "ds-flash"}) == ()
    for wrong in ("hf_token: hf-read", "DENV_TOKEN: hf-read", "HF_TOKEN: hf_AbCdEf"):
        assert isinstance(parse(DS_FLASH.replace("  topology:", f"  secrets: {{ {wrong} }}\n  topology:", 1)), tuple)


def test_a_secret_is_a_part_of_its_pools_and_releases_without_keep_their_hashes() -> None:
    engine = unit_spec().pools[0].engine
    recipe = catalog().get("deepseek-v4.1-flash/deepinfer@3")
    assert recipe is not None
    plain = pool_generation(Role.PREFILL, 4, engine, recipe)
    assert pool_generation(Role.PREFILL, 4, replace(engine, secrets={"HF_TOKEN": "hf-read"}), recipe) != plain
