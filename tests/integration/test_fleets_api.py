"""What agents, routers and people call, over the real HTTP and WebSocket stack."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.test import AsyncClient, Client
from django.utils import timezone

from denvweb.asgi import application
from denvweb.auth import token_create
from denvweb.core import wire
from denvweb.models import ApiToken
from denvweb.wake import agents_topic, poke_now
from fleets.domain.protocol import AgentReport, JoinReply, JoinRequest, NodeSnapshot, RouterReport, RouterTable
from fleets.domain.types import RankState
from fleets.models import Rank
from fleets.services import join_token_create
from tests.integration.fleets_world import RELEASE, STAGE, World

pytestmark = pytest.mark.django_db
Communicator: Any = ApplicationCommunicator  # asgiref does not type it


def _post(client: Client, path: str, body: object, token: str = "") -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return client.post(path, wire.encode(body), content_type="application/json", headers=headers)


def _router_token() -> str:
    return token_create(user=User.objects.create_user("router-user"), scope=ApiToken.Scope.ROUTER)


async def _sync(http: httpx.AsyncClient, report: AgentReport, credential: str) -> httpx.Response:
    return await http.post("/agent/v1/sync", content=wire.encode(report), headers={"Authorization": f"Bearer {credential}"})


def _http() -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=application), base_url="http://denv")


@pytest.mark.django_db(transaction=True)
async def test_reports_that_come_together_are_answered_each_with_its_own() -> None:
    """Quiet ones, a node that was behind, one that changes its ranks, and one that is refused."""
    world = await sync_to_async(World)(domains=1)
    await sync_to_async(world.unit)()
    quiet, *others = world.agents.values()
    async with _http() as http:
        now = timezone.now()
        behind = [_sync(http, agent.report(now), agent.credential) for agent in others]
        stranger = _sync(http, replace(quiet.report(now), node="gb200-use1-d01-n02"), quiet.credential)
        nobody = _sync(http, quiet.report(now), "node-x.y")
        *answers, refused, unknown = await asyncio.gather(*behind, stranger, nobody)
        assert (refused.status_code, refused.json()["code"]) == (403, "other-node")
        assert (unknown.status_code, unknown.json()["code"]) == (403, "node-credential-unknown")
        assert set(unknown.json()) == {"code", "detail", "fields", "request_id"}
        for agent, answer in zip(others, answers, strict=True):
            agent.snapshot = wire.decode(answer.content, NodeSnapshot)
            assert (agent.snapshot.node, agent.snapshot.unchanged, agent.snapshot.sync_every_s) == (agent.facts.name, False, 4.0)
        again = await asyncio.gather(*(_sync(http, agent.report(timezone.now()), agent.credential) for agent in others))
        assert all(answer.status_code == 200 for answer in again)
        assert (await http.get("/agent/v1/sync")).status_code == 405
        assert (await http.post("/agent/v1/sync", content=b"\xff{")).json()["code"] == "bad-message"
    claimed = {rank.node_id async for rank in Rank.objects.filter(state=RankState.CLAIMED)}
    assert claimed <= {agent.facts.name for agent in others if agent.snapshot.ranks} and claimed


def test_a_join_token_joins_once_over_http(client: Client) -> None:
    world = World(domains=1, nodes=1)
    facts = world.agents["gb200-use1-d01-n01"].facts
    request = JoinRequest(join_token_create(fleet="gb200-use1", created_by="t"), (facts,))
    reply = wire.decode(_post(client, "/agent/v1/join", request).content, JoinReply)
    assert set(reply.credentials) == {facts.name}
    again = _post(client, "/agent/v1/join", request)
    assert (again.status_code, again.json()["code"]) == (403, "join-token-used")
    assert set(again.json()) == {"code", "detail", "fields", "request_id"}


def test_bad_bodies_and_credentials_are_refused_in_one_shape(client: Client) -> None:
    garbage = client.post("/agent/v1/join", b"\xff{", content_type="application/json")
    assert (garbage.status_code, garbage.json()["code"]) == (400, "bad-message")
    report = RouterReport("r", "b", 1, STAGE, "http://x", 0, time.time())
    assert _post(client, "/router/v1/report", report).status_code == 401
    assert client.get("/router/v1/table").json()["code"] == "not-authenticated"
    assert client.get("/agent/v1/join").status_code == 405


def test_a_router_reports_and_is_acknowledged_twice_for_one(client: Client) -> None:
    token = _router_token()
    report = RouterReport("r", "b", 7, STAGE, "http://x", 0, time.time())
    for _ in range(2):
        assert _post(client, "/router/v1/report", report, token).json() == {"seq": 7}


def test_an_api_token_is_no_router_token(client: Client) -> None:
    token = token_create(user=User.objects.create_user("person"))
    assert client.get(f"/router/v1/table?stage={STAGE}", headers={"Authorization": f"Bearer {token}"}).status_code == 401


def test_fleets_over_rest_need_a_login(client: Client) -> None:
    World(domains=1, nodes=2)
    assert client.get("/api/v1/fleets").status_code == 401
    client.force_login(User.objects.create_user("person"))
    page = client.get("/api/v1/fleets").json()
    assert [(fleet["fleet"], fleet["gpus"], fleet["free"]) for fleet in page["results"]] == [("gb200-use1", 8, 8)]
    assert client.get("/api/v1/fleets/gb200-use1").json()["domains"][0]["domain"] == "gb200-use1/d01"
    missing = client.get("/api/v1/fleets/nowhere")
    assert (missing.status_code, missing.json()["code"]) == (404, "fleet-unknown")


def test_fleets_are_described_to_openapi(client: Client) -> None:
    client.force_login(User.objects.create_user("person"))
    schema = client.get("/api/schema/?format=json").json()
    assert "/api/v1/fleets" in schema["paths"] and "/api/v1/fleets/{name}" in schema["paths"]
    assert "cells" in schema["components"]["schemas"]["NodeMap"]["properties"]


async def _table(client: AsyncClient, token: str, query: str) -> Any:
    return await client.get(f"/router/v1/table?stage={STAGE}&{query}", headers={"Authorization": f"Bearer {token}"})


@pytest.mark.django_db(transaction=True)
async def test_a_long_poll_ends_with_the_new_table_or_with_nothing() -> None:
    client = AsyncClient()
    token = await sync_to_async(_router_token)()
    empty = wire.decode((await _table(client, token, "generation=-1")).content, RouterTable)
    assert (empty.generation, empty.weights) == (0, {})
    assert (await _table(client, token, "generation=0&wait_s=0.2")).status_code == 204
    bad = await _table(client, token, "generation=x")
    assert (bad.status_code, bad.json()["fields"]) == (400, {"generation": ["is no number"]})

    world = await sync_to_async(World)(domains=1)
    waiting = asyncio.create_task(_table(client, token, "generation=0&wait_s=20"))
    await asyncio.sleep(0)
    started = time.monotonic()
    generation = await sync_to_async(world.route)({RELEASE: 10_000})
    table = wire.decode((await waiting).content, RouterTable)
    assert (table.generation, table.weights) == (generation, {RELEASE: 10_000})
    assert time.monotonic() - started < 5


async def _socket(credential: str) -> tuple[Any, str]:
    """An agent's socket, and what the server said to its opening."""
    headers = [(b"authorization", f"Bearer {credential}".encode())]
    scope = {"type": "websocket", "path": "/agent/v1/poke", "headers": headers, "query_string": b"", "subprotocols": []}
    socket = Communicator(application, scope)
    await socket.send_input({"type": "websocket.connect"})
    return socket, str((await socket.receive_output(5))["type"])


@pytest.mark.django_db(transaction=True)
async def test_agents_are_poked_over_their_socket_and_others_are_shut_out() -> None:
    world = await sync_to_async(World)(domains=1, nodes=1)
    agent = world.agents["gb200-use1-d01-n01"]
    assert (await _socket("node-x.y"))[1] == "websocket.close"
    socket, said = await _socket(agent.credential)
    assert said == "websocket.accept"
    await poke_now({agents_topic(agent.facts.name): [agent.facts.name]})
    assert (await socket.receive_output(5))["text"] == '{"nodes":["gb200-use1-d01-n01"]}'
    await socket.send_input({"type": "websocket.receive", "text": '{"nodes": ["n7", "n8"]}'})
    while not await socket.receive_nothing(0.2):  # a poke of its own from its joining may come late
        assert (await socket.receive_output(1))["text"] == '{"nodes":["gb200-use1-d01-n01"]}'
    await poke_now({agents_topic("n9"): ["n9"]})  # another process's
    await poke_now({agents_topic("n8"): ["n9", "n8"]})
    assert (await socket.receive_output(5))["text"] == '{"nodes":["n8"]}'
    await socket.send_input({"type": "websocket.disconnect", "code": 1000})
    await socket.wait(5)
