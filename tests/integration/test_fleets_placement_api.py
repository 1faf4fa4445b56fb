"""Placement explained, drains and advice, over REST and as the command prints them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import httpx
import pytest
from click.testing import CliRunner
from django.contrib.auth.models import User
from django.test import Client

from denvweb.auth import token_create
from denvweb.cli.main import cli
from fleets.selectors import defrag_advice, drain_plan, placement_explained
from tests.integration.fleets_world import RELEASE, STAGE, World, unit_spec

pytestmark = pytest.mark.django_db
Denv = Callable[..., str]


def _answer(request: httpx.Request) -> httpx.Response:
    headers = {"Authorization": request.headers["Authorization"], "User-Agent": request.headers["User-Agent"]}
    path = request.url.raw_path.decode()
    answer = Client().generic(request.method, path, request.content, content_type="application/json", headers=headers)
    return httpx.Response(answer.status_code, content=answer.content, headers=dict(answer.headers))


@pytest.fixture
def denv(monkeypatch: pytest.MonkeyPatch) -> Denv:
    """The command, with its calls handed to Django in this process."""
    token = token_create(user=User.objects.create_superuser("op"))
    monkeypatch.setenv("DENV_URL", "http://testserver")
    monkeypatch.setenv("DENV_TOKEN", token)
    monkeypatch.setattr("denvweb.cli.client.httpx.Client", partial(httpx.Client, transport=httpx.MockTransport(_answer)))

    def run(*args: str) -> str:
        done = CliRunner().invoke(cli, list(args), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    return run


def _world() -> World:
    world = World(domains=2, nodes=6)
    world.unit(unit_spec())
    world.route({RELEASE: 10_000})
    world.settle()
    return world


def test_explain_over_rest_and_on_the_terminal(client: Client, denv: Denv) -> None:
    _world()
    client.force_login(User.objects.get(username="op"))
    found = client.get(f"/api/v1/stages/{STAGE}/placement").json()
    assert (found["stage"], found["shape"], [unit["where"] for unit in found["units"]]) == (STAGE, "2P1D", ["gb200-use1/d01"])
    missing = client.get("/api/v1/stages/no/stage/placement")
    assert (missing.status_code, missing.json()["code"]) == (404, "no-units")
    shown = denv("placement", "explain", STAGE)
    assert "2 prefill x 4 + 1 decode x 8 = 16 GPUs a unit" in shown
    assert "unit 1  gb200-use1/d01   16 GPUs on gb200-use1-d01-n01 .. gb200-use1-d01-n04 (4 nodes)" in shown
    assert "the tightest of 2 domains that take it (24 GPUs free without it)" in shown
    assert "fits  gb200-use1   GB200, choice 1   32 of 48 GPUs free, 24 in the freest of 2 domains" in shown


def test_defrag_over_rest_and_on_the_terminal(client: Client, denv: Denv) -> None:
    world = _world()
    small = unit_spec(prefill=(2, 1), decode=(2, 1), stage="ds-flash/other")
    world.unit(small)
    client.force_login(User.objects.get(username="op"))
    (advice,) = client.get("/api/v1/placement/defrag?fleet=gb200-use1").json()["results"]
    assert (advice["empty"], advice["openings"]) == (1, [])
    assert client.get("/api/v1/placement/defrag?fleet=nowhere").json()["code"] == "fleet-unknown"
    assert denv("placement", "defrag") == "1 of 2 domains of gb200-use1 is empty; no move would open another.\n"


def test_a_node_is_drained_from_the_terminal(denv: Denv) -> None:
    world = _world()
    node = "gb200-use1-d01-n01"
    assert (
        denv("nodes", "cordon", node, "--reason", "fan")
        == f"{node} is cordoned: it takes nothing new; 4 of its 4 GPUs are in use, and stay so.\n"
    )
    assert f"{node}  ready cordoned (fan)" in denv("nodes")
    plan = denv("nodes", "drain", node, "--dry-run")
    assert "elsewhere  unit 1 of ds-flash/prod-us comes up in gb200-use1/d02 first, and ends here then   P1, 16 GPUs" in plan
    assert plan.endswith(f"{node}: 1 unit to move. Nothing was changed.\n")
    assert "is cordoned and being drained: 1 unit to move" in denv("nodes", "drain", node)
    assert f"{node}  ready draining (fan)" in denv("nodes")
    assert denv("nodes", "uncordon", node) == f"{node} takes new ranks again.\n"
    empty = "gb200-use1-d02-n01"
    assert "nothing holds its GPUs" in denv("nodes", "drain", empty)
    assert f"{empty}  ready drained" in denv("nodes")
    assert world.view(world.units()[0]).complete


def test_a_join_token_is_printed_alone(denv: Denv) -> None:
    token = denv("token", "join", "gb200-use2").strip()
    assert token.startswith("join-") and "\n" not in token


def test_views_of_placement_cost_a_fixed_number_of_queries(django_assert_num_queries) -> None:  # type: ignore[no-untyped-def]  # pytest-django's
    _world()
    with django_assert_num_queries(7):
        placement_explained(stage=STAGE)
    with django_assert_num_queries(7):
        defrag_advice()
    with django_assert_num_queries(8):
        drain_plan(node="gb200-use1-d01-n01")
