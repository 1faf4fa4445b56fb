"""Forms of the pages against the real services: who did what is in the journal, a refusal is said on the page."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from denvweb.core.errors import ConflictError
from metrics.selectors import events_view
from releases.selectors.stages import stage_view
from releases.services.dry_runs import dry_run_create, dry_run_run
from releases.services.releases import How, release_create
from tests.domain.releases_world import DS_FLASH
from tests.integration.releases_fleets import make_demo_fleets
from tests.integration.rollouts_world import Demo

STAGE = "/stages/ds-flash/prod-us"


@pytest.fixture
def person(db: None) -> Client:
    make_demo_fleets()
    client = Client()
    client.force_login(User.objects.create_user("oncall-a"))
    return client


def release(person: Client, yaml: str = DS_FLASH) -> Any:
    return person.post("/releases/new", {"yaml": yaml, "action": "release", "note": "the first"}, follow=True)


def test_a_release_is_made_and_shown(person: Client) -> None:
    response = release(person)
    text = response.content.decode()
    assert response.redirect_chain[-1][0] == "/releases/ds-flash/1"
    assert "Release 1 of ds-flash is written down" in text
    assert "“the first”" in text
    created = events_view(stage="", limit=5)[-1]
    assert (created.actor, created.via) == ("oncall-a", "ui")


def test_a_release_that_does_not_fit_is_refused_with_its_reason(person: Client) -> None:
    response = release(person, DS_FLASH.replace("gb200-use1", "h200-use1"))
    assert response.status_code == 409
    assert "Not released:" in response.content.decode()
    assert "h200-use1" in response.content.decode()  # the text that was typed is still there


def test_the_dry_run_is_asked_for_until_it_is_done_and_then_no_more(person: Client) -> None:
    headers = {"hx-request": "true"}
    first = person.post("/releases/new", {"yaml": DS_FLASH}, headers=headers).content.decode()
    path = first.partition('hx-get="')[2].partition('"')[0]
    assert path.startswith("/releases/dry-runs/dry-")
    dry_run_run(id=path.rpartition("/")[2])
    done = person.get(path, headers=headers).content.decode()
    assert "It fits." in done
    assert "Plan for" in done
    assert "hx-get" not in done
    assert "Release 1</button>" in done


def test_what_is_released_is_the_plan_that_was_looked_at(person: Client) -> None:
    looked = dry_run_create(yaml=DS_FLASH, actor="oncall-a").pk
    dry_run_run(id=looked)
    asked = {"yaml": DS_FLASH, "action": "release", "dry_run": looked}
    other = person.post("/releases/new", {**asked, "yaml": f"{DS_FLASH}# more\n"}).content.decode()
    assert "Not released: The text is another than the one that was run dry" in other
    assert "is not kept any more" in person.post("/releases/new", {**asked, "dry_run": "dry-none"}).content.decode()
    assert person.post("/releases/new", asked, follow=True).redirect_chain[-1][0] == "/releases/ds-flash/1"
    with pytest.raises(ConflictError, match=r"ds-flash/\S+ would go from release \S+ to 2, not from None to 1"):
        # the same text once more would be release 2: not what the dry run said
        release_create(yaml=DS_FLASH, actor="x", via="api", how=How(dry_run=looked, supersede=True))


def test_mistakes_in_the_file_name_their_lines(person: Client) -> None:
    text = person.post(
        "/releases/new", {"yaml": DS_FLASH.replace("gpus: 4", "gpus: 0", 1)}, headers={"hx-request": "true"}
    ).content.decode()
    assert "Cannot be released" in text
    assert 'data-line="' in text


def test_a_rollback_through_the_page_is_in_the_journal(person: Client) -> None:
    release(person)
    response = person.post(f"{STAGE}/rollback", {"reason": "not today"}, follow=True)
    assert response.redirect_chain[-1][0] == STAGE
    assert "Rolling back" in response.content.decode()
    told = [event for event in events_view(stage="ds-flash/prod-us", limit=20) if event.actor == "oncall-a" and event.via == "ui"]
    assert told
    assert stage_view(stage="ds-flash/prod-us").rollout is not None


@pytest.mark.parametrize("action", ["promote", "pause", "resume"])
def test_an_act_names_who_and_what_was_seen(person: Client, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    release(person)
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(f"releases.services.rollouts.rollout_{action}", lambda **what: asked.append(what))
    person.post(f"{STAGE}/rollout/{action}", {"generation": "4117", "reason": "seen enough"})
    assert asked == [{"stage": "ds-flash/prod-us", "generation": 4117, "actor": "oncall-a", "via": "ui", "reason": "seen enough"}]


def test_a_refusal_is_said_on_the_page(person: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    release(person)

    def refuse(**_: Any) -> None:
        raise ConflictError("generation 4,117 had moved on")

    monkeypatch.setattr("releases.services.rollouts.rollout_promote", refuse)
    text = person.post(f"{STAGE}/rollout/promote", {"generation": "4117"}, follow=True).content.decode()
    assert "Refused: generation 4,117 had moved on" in text


def test_acts_are_for_people_who_signed_in_and_forms_carry_a_token(person: Client) -> None:
    release(person)
    assert Client().post(f"{STAGE}/rollback").status_code == 302
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="oncall-a"))
    refused = strict.post(f"{STAGE}/rollback")
    assert refused.status_code == 403
    assert "The form was too old" in refused.content.decode()
    assert person.get(f"{STAGE}/rollout/pause").status_code == 405
    assert person.post("/stages/ds-flash/nowhere/rollback").status_code == 404


def test_a_rollout_s_page_acts_on_that_rollout_and_no_other(db: None) -> None:
    demo = Demo()
    demo.first()
    old, new = demo.rollout(), demo.release(block=32)
    for _ in range(4):
        demo.tick(3, requests=50)
    client = Client()
    client.force_login(User.objects.create_user("oncall-a"))
    page = f"/rollouts/{new.pk}"
    paused = client.post(f"{STAGE}/rollout/pause", {"rollout": new.pk}, follow=True)
    assert paused.redirect_chain[-1][0] == page and "Paused: traffic stays as it is" in paused.content.decode()
    assert "Why it waits:</b> " in (seen := client.get(page).content.decode()) and "Resume</button>" in seen
    assert f'name="rollout" value="{new.pk}"' in client.get(f"{STAGE}/way-back?rollout={new.pk}").content.decode()
    assert "A later rollout has taken over" in client.get(f"{STAGE}/way-back?rollout={old.pk}").content.decode()
    late = client.post(f"{STAGE}/rollout/abort", {"rollout": old.pk}, follow=True).content.decode()
    assert f"Refused: Rollout {old.pk} has ended" in late and demo.rollout().state == "held"
    stale = client.post(f"{STAGE}/rollout/promote", {"rollout": new.pk, "generation": "1"}, follow=True).content.decode()
    assert "Refused: The rollout has moved on to generation" in stale and '<p class="note" data-s="info">' in stale
    for wrong in ("ro-none", "ro-\0"):
        assert client.post(f"{STAGE}/rollout/abort", {"rollout": wrong}).status_code == 404
    assert client.post("/stages/ds-flash/nowhere/rollout/abort", {"rollout": new.pk}).status_code == 404
    client.post(f"{STAGE}/rollout/abort", {"rollout": new.pk, "reason": "not today"}, follow=True)
    demo.tick()
    assert demo.rollout().state in {"rolling-back", "rolled-back"}
    events = client.get(page).content.decode()
    assert "not today" in events and "oncall-a" in events
    for listed in ("/events", "/releases/ds-flash/2/rollouts", f"/rollouts/{old.pk}"):
        assert f'href="{page}"' in client.get(listed).content.decode(), listed


MOST_QUERIES = {  # one of each reads the roles of whoever asks
    "/": 12,
    "/attention": 10,
    STAGE: 12,
    f"{STAGE}/units": 12,
    f"{STAGE}/charts": 12,
    "/rollouts/ROLLOUT": 12,
    f"{STAGE}/way-back?rollout=ROLLOUT": 12,
    f"{STAGE}/keys": 6,
    f"{STAGE}/scale": 12,
    "/fleets": 12,
    "/releases": 8,
    "/releases/ds-flash/1": 12,
    "/releases/ds-flash/1/rollouts": 6,
    "/events": 6,
    "/settings": 12,
    "/access": 12,
    "/recipes": 12,
}


def test_a_page_costs_no_more_queries_than_it_did(db: None, django_assert_max_num_queries: Any) -> None:
    demo = Demo()
    demo.first()
    demo.release(block=32)
    for _ in range(6):
        demo.tick(3, requests=50)
    client = Client()
    client.force_login(User.objects.create_user("oncall-a"))
    for name, most in MOST_QUERIES.items():
        path = name.replace("ROLLOUT", demo.rollout().pk)
        with django_assert_max_num_queries(most, info=name):
            assert client.get(path).status_code == 200, path
