"""The what-if page: a slider is a field of a plain form, its answer stands in the page, and what is no number is no accident."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from django.contrib.auth.models import User
from django.test import Client

from denvweb.core.errors import ConflictError
from frontend import whatif
from tests.integration import page_samples as samples

PAGE = "/stages/ds-flash/prod-us/what-if"
HTMX = {"hx-request": "true", "hx-target": "wi-answer"}
FIGURES = re.compile(r'<script id="wi-figures" type="application/json">(.*?)</script>', re.DOTALL)


@pytest.fixture
def person(db: None, monkeypatch: pytest.MonkeyPatch) -> Client:
    samples.patch_all(monkeypatch.setattr)
    client = Client()
    client.force_login(User.objects.create_user("oncall-a"))
    return client


def test_a_moved_slider_gets_the_answer_alone_with_both_shapes_over_load(person: Client) -> None:
    text = person.get(PAGE, {"rate": "120"}, headers=HTMX).content.decode()
    assert "<html" not in text and "<form" not in text
    assert "120 requests/s of 4,000 in" in text
    found = FIGURES.search(text)
    assert found is not None
    ttft, itl = json.loads(found[1])["charts"]
    assert [line["name"] for line in ttft["figure"]["data"]] == ["in force p50", "in force p99", "advised p50", "advised p99"]
    loads = ttft["figure"]["data"][0]["x"]
    assert loads == sorted(loads) and 120.0 in loads
    values = [value for value in itl["figure"]["data"][3]["y"] if value is not None]
    assert values[0] < values[-1]  # a step takes longer the more it has to do


def test_a_load_that_cannot_be_done_is_called_overrun_and_not_drawn(person: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(samples.ground(stage=""), shape=replace(samples.ground(stage="").shape, units=1))
    monkeypatch.setattr("frontend.pages.whatif.sizing_ground", lambda stage: small)
    text = person.get(PAGE, {"rate": "240"}, headers=HTMX).content.decode()
    assert "overrun" in text and "misses a limit" in text


def test_what_is_given_is_brought_into_the_sliders_range() -> None:
    ground = samples.ground(stage="")
    form = {slider.name: slider for slider in whatif.sliders(ground, {"rate": "nan", "isl": "1e99", "hit": "-4", "itl": "soon"})}
    assert form["rate"].value == 60.0
    assert form["isl"].value == form["isl"].most == 16_000
    assert form["hit"].value == 0.0
    assert form["itl"].value == 60.0


def test_the_api_gives_the_same_answer_and_says_what_it_was_asked(person: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.api.whatif.access_stage", lambda user, stage: None)
    monkeypatch.setattr("frontend.api.whatif.sizing_ground", samples.ground)
    found = person.get(f"/api/v1{PAGE}", {"rate": "120"}).json()
    assert (found["asked"]["rate"], found["asked"]["isl"], found["refusal"]) == (120.0, 4000.0, "")
    assert found["in_force"]["shape"] == "2 units of 2P1D on 144 GPUs (prefill 4, decode 64 a replica)"
    assert next(point["meets"] for point in found["advised"]["at"]) and found["advised"]["carries_per_s"] >= 120
    assert person.get(f"/api/v1{PAGE}", {"rate": "much"}).json()["fields"] == {"rate": ["A valid number is required."]}
    assert 429 in [person.get(f"/api/v1{PAGE}", {"rate": "much"}).status_code for _ in range(5)]  # it simulates: not fifty a second


def test_a_stage_without_a_release_says_so(person: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*, stage: str) -> None:
        raise ConflictError(f"{stage} has no release yet; there is no shape to look at", code="no-release")

    monkeypatch.setattr("frontend.pages.whatif.sizing_ground", absent)
    text = person.get(PAGE).content.decode()
    assert "ds-flash/prod-us has no release yet; there is no shape to look at." in text
    assert "<form class" not in text


def test_the_ratio_is_the_scalings_own_advice_else_what_sizing_makes_of_the_traffic(
    person: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sized = person.get("/stages/ds-flash/prod-us/ratio").content.decode()
    assert "In force: 2 units of 2P1D on 144 GPUs (prefill 4, decode 64 a replica)." in sized
    assert "is the bottleneck" in sized
    decided = replace(samples.scale(stage="ds-flash/prod-us"), ratio_advised="3P1D", why="prefill queue p99 4.1 s, of 1.5 s")
    monkeypatch.setattr("frontend.pages.whatif.scale_view", lambda stage: decided)
    text = person.get("/stages/ds-flash/prod-us/ratio").content.decode()
    assert "Advised: 3P1D." in text and "Prefill queue p99 4.1 s, of 1.5 s." in text
