"""Logs of engines from the file on the node to who reads them: positions, rotation, and an agent's pieces through the control plane."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async
from click.testing import CliRunner
from django.contrib.auth.models import User
from django.db import connection
from django.test import AsyncClient, Client
from django.utils import timezone

from denvweb.auth import token_create
from denvweb.cli.main import cli
from denvweb.core import wire
from denvweb.core.errors import ForbiddenError, NotFoundError
from fleets.agent import logs, state, tails
from fleets.agent.redact import redact
from fleets.agent.tails import LogTails
from fleets.domain.protocol import LogPiece, LogPieceReply
from fleets.domain.types import Role
from fleets.models import LogAsk
from fleets.reconcile import reconcile
from fleets.selectors import node_snapshot
from fleets.services import LogWanted, log_asks_extend, log_asks_open, log_piece_take, log_texts_take
from tests.integration.fleets_world import STAGE, World

# ---- on the node ----


def test_positions_hold_over_rotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 40)
    path = tmp_path / "k1.log"
    written = b""
    for number in range(13):
        line = f"line {number:02}\n".encode()
        with path.open("ab") as file:
            file.write(line)
        written += line
        if number % 3 == 2:
            logs.rotate_in_use(path)
        first, end = logs.span(path)
        assert end == len(written)
        kept = b""
        while first + len(kept) < end:
            at, data = logs.read_at(path, first + len(kept), 7)
            assert at == first + len(kept)
            kept += data
        assert kept == written[first:]
    assert logs.prepare(path) == len(b"line 12\n")  # a young file goes on
    assert written[logs.tail_position(path, 2) :] == b"line 11\nline 12\n"
    assert written[logs.tail_position(path, 5) :].count(b"\n") == 5
    assert logs.read_at(path, 10**6, 7)[0] == logs.span(path)[0]  # a reader of a log that began anew


def test_since_goes_by_when_the_agent_looked(tmp_path: Path) -> None:
    path = tmp_path / "k1.log"
    for at_s, text in ((100, "old\n"), (130, "new\n"), (160, "newest\n")):
        with path.open("a") as file:
            file.write(text)
        logs.stamp(path, at_s)
        logs.stamp(path, at_s + 10)  # nothing new: not noted
    assert logs.since_position(path, 50) == 0
    assert logs.since_position(path, 131) == len("old\nnew\n")
    assert logs.since_position(path, 129) == len("old\n")
    assert (tmp_path / "k1.log.times").read_text().count("\n") == 3


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("token hf_abcdefghijklmnopqrst in use", "token [hidden] in use"),
        ("Authorization: Bearer abcdefghijklmnop=", "Authorization: Bearer [hidden]"),
        ("postgresql://denv:s3cret@db/x", "postgresql://[hidden]@db/x"),
        ("my-own-secret my-own-secret-longer", "[hidden] [hidden]"),
        ("risk-averse tokens=12 http://127.0.0.1:8000/v1", "risk-averse tokens=12 http://127.0.0.1:8000/v1"),
    ],
)
def test_secrets_stay_on_the_node(text: str, seen: str) -> None:
    assert redact(text, ["my-own-secret", "my-own-secret-longer", "x"]) == seen


# ---- through the control plane ----


class _Agent:
    """The part of an agent that sends logs: asks come with the snapshot, pieces go straight to the service."""

    def __init__(self, world: World, node: str, path: Path) -> None:
        self.node, self._path, self._credential = node, path, world.agents[node].credential
        self.tails = self._new()

    def _new(self) -> LogTails:
        return LogTails(self._path, self, lambda: self._credential)

    async def log_piece(self, credential: str, piece: LogPiece) -> LogPieceReply:
        return await sync_to_async(log_piece_take)(credential=credential, piece=piece)

    async def look(self) -> None:
        self.tails.want((await sync_to_async(node_snapshot)(node=self.node)).logs)

    async def restart(self) -> None:
        await self.tails.close()
        self.tails = self._new()
        await self.look()


async def _event(chunks: AsyncIterator[bytes], text: list[str]) -> tuple[str, dict[str, Any]]:
    async with asyncio.timeout(10):
        while True:
            block, mark, rest = text[0].partition("\n\n")
            if mark:
                text[0] = rest
                fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
                if "data" in fields:
                    return fields["event"], json.loads(fields["data"])
            else:
                text[0] += (await anext(chunks)).decode()


@asynccontextmanager
async def _reading(token: str, query: str) -> AsyncIterator[Any]:
    try:
        response: Any = await AsyncClient().get(f"/api/v1/stages/{STAGE}/logs?{query}", headers={"Authorization": f"Bearer {token}"})
        assert response.status_code == 200, response.content
        async with aclosing(aiter(response)) as chunks:
            text = [""]
            yield lambda: _event(chunks, text)
    finally:
        await sync_to_async(lambda: connection.close())()


def _world() -> tuple[World, str, str, str]:
    """A world, an admin's token, and the node and id of the first prefill rank."""
    world = World(domains=1, nodes=4)
    unit = world.unit()
    world.settle()
    rank = next(pool for pool in world.view(unit).pools if pool.role is Role.PREFILL).replicas[0].ranks[0]
    return world, token_create(user=User.objects.create_superuser("op")), rank.node, rank.rank_id


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr("fleets.api.log_views._LOOK_AGAIN_S", 0.02)


@pytest.mark.usefixtures("transactional_db", "quick")
async def test_a_log_is_followed_over_a_restart_of_its_agent_and_the_end_of_its_engine(tmp_path: Path) -> None:
    world, token, node, rank_id = await sync_to_async(_world)()
    state.prepare(tmp_path)
    path = state.log_path(tmp_path, rank_id)
    path.write_text("one\ntwo\n\x1b[31mthree hf_abcdefghijklmnopqrst\x1b[0m\nhalf a l")
    agent = _Agent(world, node, tmp_path)
    async with _reading(token, "pool=prefill&replica=1&tail=3&follow=1") as event:
        await agent.look()
        assert await event() == (
            "log",
            {"unit": 1, "role": "prefill", "ordinal": 0, "rank": 0, "node": node, "text": "two\nthree [hidden]\n", "note": ""},
        )
        with path.open("a") as file:
            file.write("ine\n")
        assert (await event())[1]["text"] == "half a line\n"
        await agent.restart()
        with path.open("a") as file:
            file.write("last words\nTraceback")  # it dies here
        first = (await event())[1]["text"]
        assert (first, (await event())[1]["text"]) == ("last words\n", "Traceback")
    await agent.tails.close()


@pytest.mark.usefixtures("transactional_db", "quick")
async def test_a_log_ends_where_it_ends_and_a_silent_node_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, token, node, rank_id = await sync_to_async(_world)()
    monkeypatch.setattr("fleets.api.log_views._ANSWER_S", 0.3)
    monkeypatch.setattr("fleets.api.log_views._GIVE_UP_S", 0.5)
    state.prepare(tmp_path)
    state.log_path(tmp_path, rank_id).write_text("Killed")
    agent = _Agent(world, node, tmp_path)
    async with _reading(token, "pool=prefill") as event:
        await agent.look()
        assert (await event())[1]["text"] == "Killed"
        kind, said = await event()
        assert kind == "note"
        assert "has sent nothing of its log in 0 s" in said["note"]
        assert (await event())[0] == "end"
    await agent.tails.close()
    monkeypatch.setattr("fleets.api.log_views._ANSWER_S", 10)
    async with _reading(token, "pool=prefill&replica=1&since=5m") as event:
        await agent.look()
        assert [(await event())[0], (await event())[0]] == ["log", "end"]


@pytest.mark.django_db
def test_what_is_not_read_is_bounded_and_forgotten(client: Client) -> None:
    world, _, node, _ = _world()
    reader, sources = log_asks_open(stage=STAGE, wanted=LogWanted(Role.PREFILL, ordinal=0, follow=True))
    (ask,) = sources
    credential = world.agents[node].credential
    piece = LogPiece(ask.ask, 0, 60_000, "x" * 60_000)
    taken = [log_piece_take(credential=credential, piece=LogPiece(ask.ask, n * 60_000, (n + 1) * 60_000, "x" * 60_000)) for n in range(12)]
    assert [reply.taken for reply in taken].count(False) == 3
    assert log_piece_take(credential=credential, piece=piece) == LogPieceReply(go_on=True)  # it came before: taken once
    body = wire.encode(LogPiece(ask.ask, 0, 5, "again"))
    over_http = client.post("/agent/v1/logs", body, content_type="application/json", headers={"Authorization": f"Bearer {credential}"})
    assert over_http.json() == {"go_on": True, "taken": True}
    assert client.post("/agent/v1/logs", body, content_type="application/json").status_code == 403
    seen: dict[str, int] = {}
    lines, done = log_texts_take(reader=reader, sources=sources, seen=seen)
    assert (sum(len(line.text) for line in lines), done) == (540_000, False)
    log_piece_take(credential=credential, piece=LogPiece(ask.ask, 700_000, 700_005, "late\n"))
    assert "160,000 bytes are left out" in log_texts_take(reader=reader, sources=sources, seen=seen)[0][0].note
    other = next(name for name in world.agents if name != node)
    with pytest.raises(ForbiddenError, match="not asked of"):
        log_piece_take(credential=world.agents[other].credential, piece=piece)
    everything = LogWanted(Role.PREFILL, follow=True)
    assert [more.ordinal for more in log_asks_extend(reader=reader, stage=STAGE, wanted=everything)] == [1]  # one that came since
    assert log_asks_extend(reader=reader, stage=STAGE, wanted=everything) == ()
    later = timezone.now() + timedelta(seconds=20)
    assert log_piece_take(credential=credential, piece=piece, now=later) == LogPieceReply(go_on=False)
    reconcile(timezone.now() + timedelta(seconds=90))
    assert not LogAsk.objects.exists()


@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("pool=prefil", 400, "invalid"),
        ("pool=prefill&since=soon", 400, "invalid"),
        ("pool=prefill&replica=0", 400, "invalid"),
        ("pool=aggregated", 404, "no-such-log"),
    ],
)
async def test_what_cannot_be_read_is_said(query: str, status: int, code: str) -> None:
    def make() -> str:
        return token_create(user=User.objects.create_superuser("op"))

    token = await sync_to_async(make)()
    answer = await AsyncClient().get(f"/api/v1/stages/{STAGE}/logs?{query}", headers={"Authorization": f"Bearer {token}"})
    assert (answer.status_code, json.loads(answer.content)["code"]) == (status, code)
    assert (await AsyncClient().get(f"/api/v1/stages/{STAGE}/logs?{query}")).status_code == 401
    await sync_to_async(lambda: connection.close())()


def test_the_command_prints_lines_with_their_replica_and_notes_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"unit": 1, "role": "decode", "ordinal": 0, "rank": 1, "node": "n1", "text": "one\ntwo\n", "note": ""}
    asked: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        if "missing" in request.url.path:
            return httpx.Response(404, json={"code": "no-such-log", "detail": "Nothing of it runs.", "fields": {}})
        note = json.dumps(said | {"text": "", "note": "n2 has sent nothing"})
        text = f"retry: 3000\n\nevent: log\ndata: {json.dumps(said)}\n\n: alive\n\nevent: note\ndata: {note}\n\nevent: end\ndata: {{}}\n\n"
        return httpx.Response(200, text=text, headers={"Content-Type": "text/event-stream"})

    monkeypatch.setenv("DENV_URL", "http://testserver")
    monkeypatch.setenv("DENV_TOKEN", "tok-1.x")
    monkeypatch.setattr("denvweb.cli.client.httpx.Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
    done = CliRunner().invoke(cli, ["logs", "m/s", "decode", "-f", "--replica", "1", "--since", "10m"])
    assert done.stdout == "unit 1 decode 1 rank 1  one\nunit 1 decode 1 rank 1  two\n"
    assert done.stderr == "unit 1 decode 1 rank 1: n2 has sent nothing\n"
    assert dict(asked[0].params) == {"pool": "decode", "replica": "1", "since": "10m", "follow": "1"}
    lines = CliRunner().invoke(cli, ["logs", "m/s", "decode", "--json"]).stdout.splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["one", "two"]
    with pytest.raises(NotFoundError, match="Nothing of it runs"):
        CliRunner().invoke(cli, ["logs", "m/missing", "decode"], catch_exceptions=False)
