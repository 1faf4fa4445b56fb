"""What the pages show, on a made-up evening: every state has its words, and nothing inline gets past the policy."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import pytest
from django.contrib.auth.models import User
from django.test import Client

from frontend.accounts.roles import policy_set
from tests.integration import page_samples as samples

PAGES = {
    "/": "llama-70b/prod-us breached and is rolling back.",
    "/stages/ds-flash/prod-us": "Canary 10%",
    "/stages/kimi-k2/prod-us": "Waits for approval",
    "/stages/llama-70b/prod-us": "Rolling back to 21",
    "/stages/ds-flash/prod-us/what-if": "is the bottleneck of the advised shape",
    "/stages/ds-flash/prod-us/scale": "Prefill replicas of each unit",
    "/stages/ds-flash/prod-us/rollback": "Roll ds-flash/prod-us back to release 7?",
    "/rollouts/ro-ds-flash-prod-us": "On what Bring up unit 2 passed",
    "/rollouts/ro-kimi-k2-prod-us": "Waits for a person who is not deployer-b.",
    "/stages/ds-flash/prod-us/way-back?rollout=ro-ds-flash-prod-us": "all traffic to release 7?",
    "/stages/ds-flash/prod-us/logs": "denv logs ds-flash/prod-us prefill -f",
    "/fleets": "2 fleets, 248 GPUs",
    "/releases": "Releases of 3 models",
    "/releases/ds-flash/8": "ds-flash, release 8",
    "/releases/ds-flash/8/rollouts": "itl-p99 tripped at 412 : 1",
    "/releases/new": "New release",
    "/events": "deployer-b started release 8",
    "/recipes": "recipes</h1>",
    "/access": "Who may do what",
    "/settings": "API tokens",
}
PARTS = [path for path in PAGES if "/way-back" in path or path.endswith("/rollouts")]
LIVING = [path for path in PAGES if path not in PARTS and not path.endswith(("/rollback", "/new", "/what-if", "/logs"))]
INLINE = re.compile(
    r"""<[^>]+\s(?:style|on\w+)\s*=|<style|javascript:|<script(?![^>]*\ssrc=)(?![^>]*type="application/json")""", re.IGNORECASE
)


@pytest.fixture
def person(db: None, monkeypatch: pytest.MonkeyPatch) -> Client:
    samples.patch_all(monkeypatch.setattr)
    client = Client()
    client.force_login(User.objects.create_user("oncall-a"))
    return client


@pytest.mark.parametrize("path", PAGES)
def test_a_page_says_what_is_so_without_anything_inline(person: Client, path: str) -> None:
    response = person.get(path)
    text = response.content.decode()
    assert response.status_code == 200
    assert PAGES[path] in text
    assert len(re.findall(r"<h1\b", text)) == (0 if path in PARTS else 1)
    assert not INLINE.search(text), INLINE.search(text)
    assert "unsafe-inline" not in response.headers["Content-Security-Policy"]
    assert response.headers["Cache-Control"] == "no-store"


def test_a_stage_says_what_it_breaks_between_rollouts_and_which_evidence_is_made(person: Client) -> None:
    broken = person.get("/stages/llama-70b/staging").content.decode()
    assert "ttft-p99 has been over its limit since" in broken and "told at 34,560 : 1" in broken and "in rollouts only" in broken
    rolling = person.get("/stages/ds-flash/prod-us").content.decode()
    assert "120 of 1,324 requests on the new release are synthetic, and are judged apart." in rolling
    assert "<q>Draft length 2 → 3 on decode: lower ITL.</q>" in rolling
    assert "at most 25% over the release beside it" in rolling


@pytest.mark.parametrize("path", LIVING)
def test_a_refresh_gets_only_what_lives_in_the_page(person: Client, path: str) -> None:
    text = person.get(path, headers={"hx-request": "true"}).content.decode()
    assert "<html" not in text
    assert "<h1" in text


@pytest.mark.parametrize("path", PAGES)
def test_a_stranger_is_sent_to_the_login(client: Client, db: None, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 302
    assert response.headers["Location"].startswith("/login?next=")


def test_a_refresh_after_the_session_ended_loads_the_login_as_a_page(client: Client, db: None) -> None:
    response = client.get("/fleets", headers={"hx-request": "true"})
    assert response.headers["HX-Redirect"] == "/login?next=/fleets"
    page = {"hx-request": "true", "hx-current-url": "http://testserver/stages/ds-flash/prod-us?range=1h"}
    part = client.get("/stages/ds-flash/prod-us/units?base=x", headers=page)
    assert part.headers["HX-Redirect"] == "/login?next=/stages/ds-flash/prod-us%3Frange%3D1h", "not to a part without its page"
    page["hx-current-url"] = "http://elsewhere/fleets"
    assert client.get("/attention", headers=page).headers["HX-Redirect"] == "/login?next=/attention"


def test_every_id_on_a_page_is_its_own(person: Client) -> None:
    for path in PAGES:
        ids = re.findall(r'\sid="([^"]+)"', person.get(path).content.decode())
        assert len(ids) == len(set(ids)), [name for name in ids if ids.count(name) > 1]


def test_the_overview_lists_what_needs_a_person_and_what_moves(person: Client) -> None:
    text = person.get("/").content.decode()
    needs, moves = text.index("Needs a person"), text.index("Moving by itself")
    assert needs < text.index("12 → 13: waits for approval") < moves
    assert needs < text.index("2 nodes of 4 silent") < moves
    assert moves < text.index("back to release 21")
    assert "simulated" in text


def test_the_count_beside_overview_is_of_what_needs_a_person(person: Client) -> None:
    text = person.get("/attention").content.decode()
    assert 'data-s="bad"' in text
    assert ">2<" in text


def test_evidence_is_said_in_odds(person: Client) -> None:
    text = person.get("/stages/ds-flash/prod-us").content.decode()
    assert "evidence <b>2.1 : 1</b>" in text
    assert "rolls back at 300 : 1" in text
    assert "(0.71–1.98%)" in text


def test_the_stage_carries_its_figures_and_its_range(person: Client) -> None:
    text = person.get("/stages/ds-flash/prod-us?range=60").content.decode()
    assert '<a href="?range=1h" data-range="range=1h" aria-current="true">1 h</a>' in text
    assert 'data-charts="/stages/ds-flash/prod-us/charts?range=1h" data-every="2000"' in text
    figures = person.get("/stages/ds-flash/prod-us/charts?range=60").json()["charts"]
    assert [chart["id"] for chart in figures] == [
        *("ttft", "itl", "tail", "phases", "errors", "queue", "wait", "waiting", "kv", "transfer", "moved", "share", "requests", "goodput")
    ]
    said = {chart["id"]: " ".join((chart["say"]["strong"], chart["say"]["rest"])) for chart in figures}
    assert "Clients who left: 11, not errors." in said["errors"]
    assert "over 64 decode computes longer prompts itself" in said["queue"]
    assert "no preemption in this range" in said["kv"]
    assert "108 MB each in the mean; 0 failed, 0 leases expired, 0 recomputed in this range: fine." in said["transfer"]
    assert "2P1D in force, 3P1D advised." in said["share"]
    good = next(chart for chart in figures if chart["id"] == "goodput")
    assert "a second for each of its 72 on release 8" in good["say"]["strong"]
    assert "What counts: the first token within 1,500 ms and a mean gap within 60 ms." in good["say"]["rest"]
    tail = next(chart for chart in figures if chart["id"] == "tail")
    assert tail["say"]["strong"] == "Release 8's slowest 13 of 1,204: 1,320 ms,"
    assert "600 queue, 550 prefill, 120 transfer, 50 1st step; release 7's slowest 109 of 10,836: 1,220 ms," in tail["say"]["rest"]
    assert {trace["yaxis"] for trace in tail["figure"]["data"]} == {"y", "y2"}  # canary and baseline apart
    assert tail["figure"]["layout"]["yaxis"]["range"] == tail["figure"]["layout"]["yaxis2"]["range"]
    itl = next(chart for chart in figures if chart["id"] == "itl")
    assert itl["say"]["tone"] == "bad"
    assert "#" not in json.dumps([trace["line"] for trace in itl["figure"]["data"]])


def test_a_link_to_a_range_shows_the_same_picture_whoever_opens_it(person: Client) -> None:
    pinned = person.get("/stages/ds-flash/prod-us/charts?range=15m").json()["range"]["pin"]
    text = person.get(f"/stages/ds-flash/prod-us?{pinned}").content.decode()
    assert f'charts?{pinned.replace("&", "&amp;")}" data-every="0"' in text and "standing still" in text
    answer = person.get(f"/stages/ds-flash/prod-us/charts?{pinned}").json()
    asked = parse_qs(pinned)
    ranges = {tuple(chart["figure"]["layout"]["xaxis"]["range"]) for chart in answer["charts"]}
    assert ranges == {(asked["from"][0], asked["to"][0])}  # one axis for all
    assert (answer["range"]["query"], answer["range"]["every_ms"]) == (pinned, 0)
    for way in answer["range"]["links"].values():
        assert person.get(f"/stages/ds-flash/prod-us/charts?{way}").json()["range"]["query"] == way


def test_a_first_release_says_what_rolling_back_means(person: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    text = person.get("/stages/ds-flash/staging").content.decode()
    assert 'id="dlg-rollback"' not in text
    assert "There is no earlier release to go back to." in text


def test_a_fleet_of_many_domains_is_tiles(person: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleets.api.access.fleet_maps", lambda names: (samples.many_domains(),))
    text = person.get("/fleets").content.decode()
    assert text.count('class="tile"') == 40
    assert text.count('tabindex="-1"') == 40  # 39 tiles and main: one tab stop for all tiles
    assert text.index('data-k="s"') < text.index('data-k="f"')


def test_lists_are_filtered_by_their_address(person: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(path: str, row: str) -> list[str]:
        return re.findall(rf'<tr[^>]* id="{row}-([^"]+)"', person.get(path).content.decode())

    every = rows("/", "st")
    assert {"ds-flashstaging", "ds-flashprod-us", "llama-70bprod-us"} < set(every)
    assert rows("/?model=ds-flash", "st") == [name for name in every if name.startswith("ds-flash")]
    assert rows("/?model=ds-flash&state=rolling&fleet=gb200-use1", "st") == ["ds-flashprod-us"]
    assert rows("/?state=sideways", "st") == every, "what is no state filters nothing"
    none = person.get("/?model=nobody").content.decode()
    assert "No stage fits." in none and "llama-70b/prod-us breached" in none, "what needs a person stands there whatever the table shows"
    assert 'hx-get="/?model=nobody"' in none, "a refresh keeps the filter"

    nodes = rows("/fleets?nodes=all", "node")
    silent = rows("/fleets?state=suspect", "node")
    assert silent and len(nodes) == 58 and set(silent) < set(nodes)
    assert rows("/fleets?fleet=h200-use1&nodes=all", "node") == sorted(rows("/fleets?fleet=h200-use1", "node"), key=nodes.index)
    assert 'id="gb200-use1"' not in person.get("/fleets?fleet=h200-use1").content.decode()

    asked: dict[str, object] = {}
    monkeypatch.setattr("frontend.pages.releases.releases_view", lambda **words: asked.update(words) or ())
    assert "No release fits." in person.get("/releases?model=ds-flash&stage=prod-us&held=yes&by=ada&before=9").content.decode()
    assert asked == {"model": "ds-flash", "before": 9, "stage": "prod-us", "by": "ada", "held": True}
    monkeypatch.setattr("frontend.pages.events.events_view", lambda **words: asked.update(words) or ())
    assert person.get("/events?since=2026-12-01T09:30&until=x&level=bad&kind=nothing").status_code == 200
    assert (asked["since"], asked["until"], asked["level"], asked["kind"]) == (datetime(2026, 12, 1, 9, 30, tzinfo=UTC), None, "bad", "")


def test_an_empty_house_says_what_to_do(client: Client, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    client.force_login(User.objects.create_user("first"))
    for path, hint in {
        "/": "No stage yet",
        "/fleets": "No fleet yet",
        "/releases": "Make the first",
        "/events": "The journal is empty",
    }.items():
        assert hint in client.get(path).content.decode()


def test_what_is_not_there_is_a_page_that_says_so(person: Client) -> None:
    for path in ("/stages/ds-flash/nowhere", "/nowhere"):
        response = person.get(path)
        assert response.status_code == 404
        assert "There is no such page" in response.content.decode()
        assert response.headers["X-Request-Id"] in response.content.decode()


def test_an_error_is_a_page_that_says_that_serving_goes_on(person: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(names: object) -> None:
        raise RuntimeError("the page broke")

    monkeypatch.setattr("fleets.api.access.fleet_maps", broken)
    person.raise_request_exception = False
    response = person.get("/fleets")
    assert response.status_code == 500
    assert "What runs goes on serving" in response.content.decode()
    assert response.headers["X-Request-Id"] in response.content.decode()


def test_plotly_comes_from_its_package_and_is_kept_for_ever(client: Client) -> None:
    from frontend.pages.assets import plotly_version

    path = f"/assets/plotly-{plotly_version()}.min.js"
    response = client.get(path, headers={"accept-encoding": "gzip, br"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert "immutable" in response.headers["Cache-Control"]
    again = client.get(path, headers={"if-none-match": response.headers["ETag"]})
    assert again.status_code == 304
    assert client.get(path).content.startswith(b"/**")
    assert client.get("/assets/plotly-1.0.min.js").headers["Cache-Control"] == "no-cache"


def test_signing_in_and_out(client: Client, db: None) -> None:
    User.objects.create_user("oncall-a", password="a long password")
    wrong = client.post("/login", {"username": "oncall-a", "password": "wrong"})
    assert "do not match" in wrong.content.decode()
    right = client.post("/login?next=/fleets", {"username": "oncall-a", "password": "a long password", "next": "/fleets"})
    assert right.headers["Location"] == "/fleets"
    assert client.post("/logout").headers["Location"] == "/login"


def test_who_may_only_look_sees_no_button_that_works_and_reads_who_may(person: Client, settings: Any) -> None:
    settings.DEFAULT_ROLE = "viewer"
    assert ">Approve</button>" not in person.get("/").content.decode()
    held = person.get("/stages/kimi-k2/prod-us").content.decode()
    assert re.search(r'<button [^>]*aria-disabled="true" aria-describedby="no-role">[^\n]*Approve 50%</button>', held)
    assert "Approving takes the role admin or approver." in held and "/rollout/promote" not in held
    planned = person.get("/releases/dry-runs/dry-1").content.decode()
    assert "Releasing takes the role admin or deployer." in planned and 'value="release"' not in planned
    settings.DEFAULT_ROLE = "approver"
    own = User.objects.create_user("deployer-b")
    person.force_login(own)
    policy_set(model="*", approver_differs=True, by=User.objects.create_superuser("root"), via="cli")
    assert "Somebody else has to approve this: you started the rollout" in person.get("/stages/kimi-k2/prod-us").content.decode()
