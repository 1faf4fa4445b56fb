"""Creating releases over the API: numbered, immutable, once for an idempotency key, refused as the dry run would."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.test import Client

from denvweb.auth import token_create
from denvweb.models import IdempotencyKey
from metrics.selectors import events_view
from releases.models import Release, Rollout, Stage
from releases.selectors.releases import release_unit
from tests.domain.releases_world import DS_FLASH
from tests.integration.releases_fleets import make_demo_fleets

NEXT = DS_FLASH.replace("stages:", "  engine: { decode: { speculative-draft-length: 3 } }\nstages:")
TWO_STAGES = DS_FLASH + "  staging:\n    fleets: [gb200-use1]\n"
SMALL = """\
release:
  model: llama
  weights: hf://meta-llama/Llama-3.1-70B@1605565b
  recipe: llama-3.1-70b/vllm@1
  topology: { mode: aggregated, gpus: 4 }
stages: { prod: { fleets: [h200-use1] } }
"""


def make_api() -> Client:
    """A client with a token of its own user."""
    user, _ = User.objects.get_or_create(username="ada")
    return Client(headers={"authorization": f"Bearer {token_create(user=user)}"})


def post(api: Client, yaml: str, key: str = "", **more: str) -> tuple[int, dict[str, Any]]:
    """POST /releases."""
    headers = {"idempotency-key": key} if key else {}
    response = api.post("/api/v1/releases", {"yaml": yaml, **more}, content_type="application/json", headers=headers)
    return response.status_code, dict(response.json())


def settle(model: str = "ds-flash") -> None:
    """Have the newest release of a model be the stable one of its stages, as after a rollout."""
    newest = Release.objects.filter(model__name=model).latest("number")
    Rollout.objects.filter(to_release=newest).update(state=Rollout.State.SUCCEEDED)
    Stage.objects.filter(model__name=model).update(release=newest)


@pytest.fixture
def api(db: None) -> Client:
    make_demo_fleets()
    return make_api()


def test_a_release_gets_the_next_number_and_a_rollout(api: Client) -> None:
    status, body = post(api, DS_FLASH, note="the first")
    assert status == 201
    release, (rollout,) = body["release"], body["rollouts"]
    assert (release["model"], release["number"], release["created_by"], release["note"]) == ("ds-flash", 1, "ada", "the first")
    assert release["yaml"] == DS_FLASH
    assert set(release["generations"]) == {"prefill", "decode", "compat"}
    assert release["stages"] == ["prod-us"]
    assert (rollout["stage"], rollout["to_release"], rollout["active"]) == ("ds-flash/prod-us", 1, True)
    stage = Stage.objects.get()
    assert (stage.name, stage.position, stage.settings["replicas"]) == ("prod-us", 0, 2)
    settle()
    assert post(api, NEXT)[1]["release"]["number"] == 2


def test_a_long_note_is_cut_and_one_line(api: Client) -> None:
    status, body = post(api, DS_FLASH, note="abc\n" + "d" * 300)
    assert (status, body["release"]["note"]) == (201, "abc" + "d" * 197)


def test_the_journal_says_who_and_why(api: Client) -> None:
    post(api, DS_FLASH, note="because")
    sentences = {event.kind: event for event in events_view(model="ds-flash")}
    event = sentences["release.created"]
    assert event.sentence == "ada created release 1 of ds-flash for prod-us: because"
    assert (event.actor, event.via, event.release) == ("ada", "api", "ds-flash@1")


def test_stages_go_one_after_the_other(api: Client) -> None:
    status, body = post(api, TWO_STAGES.replace("replicas: 2\n", "replicas: 1\n"))
    assert status == 201, body
    assert [rollout["stage"] for rollout in body["rollouts"]] == ["ds-flash/prod-us", "ds-flash/staging"]
    first, second = (Rollout.objects.get(pk=rollout["id"]) for rollout in body["rollouts"])
    assert (first.after_id, second.after_id) == (None, first.pk)


def test_one_stage_can_be_named(api: Client) -> None:
    status, body = post(api, TWO_STAGES, stage="staging")
    assert status == 201, body
    assert [rollout["stage"] for rollout in body["rollouts"]] == ["ds-flash/staging"]
    assert list(Stage.objects.values_list("name", "position")) == [("staging", 1)]


def test_mistakes_in_the_file_are_told_by_path(api: Client) -> None:
    status, body = post(api, DS_FLASH.replace("gpus: 4,", "gpus: 0,").replace("replicas: 2\n", "replica: 2\n"))
    assert (status, body["code"]) == (400, "spec-invalid")
    assert body["fields"]["release.topology.prefill.gpus"] == [
        "denv.yaml:5:32  release.topology.prefill.gpus: 0 is not a number of GPUs; it must be at least 1"
    ]
    assert "did you mean `replicas`?" in body["fields"]["stages.prod-us.replica"][0]
    assert len(body["detail"].splitlines()) == 2
    assert not Release.objects.exists()


def test_what_the_dry_run_refuses_is_refused(api: Client) -> None:
    status, body = post(api, DS_FLASH.replace("gb200-use1", "h200-use1"))
    assert (status, body["code"]) == (409, "domain-too-small")
    assert body["detail"] == "stage prod-us: fleet h200-use1 domain is 8 GPUs; serving unit needs 72 (same-domain)"
    assert not Release.objects.exists()
    assert not Stage.objects.exists()


def test_a_second_release_waits_for_the_first(api: Client) -> None:
    post(api, DS_FLASH)
    status, body = post(api, NEXT)
    assert (status, body["code"]) == (409, "rollout-in-flight")


def test_the_same_again_is_nothing_to_change(api: Client) -> None:
    post(api, DS_FLASH)
    settle()
    status, body = post(api, "# only a comment more\n" + DS_FLASH)
    assert (status, body["code"]) == (409, "nothing-to-change")
    assert body["detail"] == "This is what runs in prod-us (release 1) already; nothing would change."
    assert post(api, DS_FLASH.replace("replicas: 2\n", "replicas: 3\n"))[0] == 201


def test_the_same_key_creates_once(api: Client) -> None:
    first = post(api, DS_FLASH, key="k-1")
    assert first[0] == 201
    assert post(api, DS_FLASH, key="k-1") == first
    assert Release.objects.count() == 1
    assert post(api, NEXT, key="k-1")[1]["code"] == "idempotency-key-reused"
    assert post(api, DS_FLASH, key="k" * 300)[1]["code"] == "idempotency-key-invalid"


def test_a_refused_request_may_come_again_under_its_key(api: Client) -> None:
    assert post(api, DS_FLASH.replace("gb200-use1", "nowhere"), key="k-2")[0] == 409
    assert not IdempotencyKey.objects.exists()
    assert post(api, DS_FLASH, key="k-2")[0] == 201


def test_a_release_never_changes(api: Client) -> None:
    post(api, DS_FLASH)
    release = Release.objects.get()
    changes: list[dict[str, Any]] = [{"yaml": "x"}, {"spec": {}}, {"number": 9}, {"created_by": "eve"}]
    for change in changes:
        with pytest.raises(IntegrityError, match="never changes"), transaction.atomic():
            Release.objects.filter(pk=release.pk).update(**change)
    assert Release.objects.filter(pk=release.pk).update(held_reason="rolled back at 10%") == 1


def test_reading_releases(api: Client) -> None:
    for text in (DS_FLASH, NEXT, DS_FLASH.replace("replicas: 2 }", "replicas: 1 }")):
        assert post(api, text)[0] == 201
        settle()
    page = api.get("/api/v1/models/ds-flash/releases?limit=2").json()
    assert [release["number"] for release in page["results"]] == [3, 2]
    assert page["next"] == "2"
    last = api.get("/api/v1/models/ds-flash/releases?limit=2&before=2").json()
    assert ([release["number"] for release in last["results"]], last["next"]) == ([1], None)
    assert page["results"][0]["stages"] == ["prod-us"]
    assert page["results"][1]["stages"] == []
    assert api.get("/api/v1/models/ds-flash/releases/2").json()["spec"]["release"]["engine_options"]["decode"] == {
        "speculative-draft-length": "3"
    }
    for path in (
        "models/ds-flash/releases/9",
        "models/nothing/releases",
        "models/nothing/releases/1",
        "models/%00/releases",
        "dry-runs/%00",
    ):
        assert api.get(f"/api/v1/{path}").status_code == 404
    assert api.get("/api/v1/models/ds-flash/releases?before=x").json()["code"] == "invalid"


def test_the_difference_of_two_releases(api: Client) -> None:
    for text in (DS_FLASH, NEXT):
        post(api, text)
        settle()
    diff = api.get("/api/v1/models/ds-flash/releases/2/diff").json()
    assert (diff["number"], diff["against"]) == (2, 1)
    assert diff["touches"] == "decode only (speculative-draft-length 2 -> 3)"
    assert diff["changes"] == [{"path": "release.engine.decode.speculative-draft-length", "before": "", "after": "3"}]
    assert "+  engine: { decode: { speculative-draft-length: 3 } }" in diff["unified"]
    assert api.get("/api/v1/models/ds-flash/releases/2/diff?against=2").json()["touches"] == "nothing"
    assert api.get("/api/v1/models/ds-flash/releases/1/diff").json()["against"] == 1


def test_recipes_are_listed(api: Client) -> None:
    recipes = {recipe["recipe"]: recipe for recipe in api.get("/api/v1/recipes").json()["results"]}
    assert recipes["deepseek-v4.1-flash/deepinfer@3"]["modes"] == ["disaggregated", "aggregated"]
    assert recipes["deepseek-v4.1-flash/deepinfer@3"]["options"]["decode"]["speculative-draft-length"] == "2"


def test_a_unit_is_the_same_whenever_it_is_read(api: Client) -> None:
    post(api, DS_FLASH)
    release = Release.objects.select_related("model").get()
    unit = release_unit(release, "prod-us")
    assert {pool.role.value: pool.generation for pool in unit.pools} | {"compat": unit.compat} == release.generations


def test_the_schema_describes_these_paths(api: Client) -> None:
    text = api.get("/api/schema/", headers={"accept": "application/json"}).content.decode()
    for path in ("/api/v1/releases", "/api/v1/dry-runs/{id}", "/api/v1/models/{model}/releases/{number}/diff", "/api/v1/recipes"):
        assert path in text


def at_once(*calls: Callable[[], tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """Run calls in threads, each with its own connection."""

    def run(call: Callable[[], tuple[int, dict[str, Any]]]) -> tuple[int, dict[str, Any]]:
        try:
            return call()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@pytest.mark.django_db(transaction=True)
def test_two_at_once_with_one_key_create_once() -> None:
    make_demo_fleets()
    api = make_api()
    first, second = at_once(*[partial(post, api, SMALL, "k-3")] * 2)
    assert first == second
    assert first[0] == 201
    assert Release.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_numbers_are_given_out_once() -> None:
    make_demo_fleets()
    api = make_api()
    texts = [SMALL.replace("prod:", f"prod-{index}:") for index in range(4)]
    answers = at_once(*[partial(post, api, text) for text in texts])
    assert [status for status, _ in answers] == [201] * 4
    assert sorted(body["release"]["number"] for _, body in answers) == [1, 2, 3, 4]
