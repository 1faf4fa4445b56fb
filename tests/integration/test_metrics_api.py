"""The metrics API at its interface: figures, lines, the journal, and the journal as a stream."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import AsyncClient, Client
from django.utils import timezone

from denvweb import throttle
from denvweb.auth import token_create
from denvweb.cli.metrics import metrics_text
from denvweb.models import ApiToken
from metrics.domain.histogram import Histogram
from metrics.domain.types import Metric, Route, SeriesDelta, SeriesKey
from metrics.services import event_append, series_ingest
from tests.integration import page_samples as samples
from tests.integration.page_figures import metrics as figures_of

KEY = SeriesKey(stage="m/s", unit="u-1", prefill_release="m@1", decode_release="m@1", route=Route.REMOTE)


@pytest.fixture
def user(db: None) -> User:
    return User.objects.create_user("ada", password="a long password")


@pytest.fixture
def client(client: Client, user: User) -> Client:
    client.force_login(user)
    return client


def _serve(requests: int, ago_s: float = 15) -> None:
    ttft = Histogram()
    for _ in range(requests):
        ttft.record(0.25)
    delta = SeriesDelta(key=KEY, counters={"requests": requests}, histograms={Metric.TTFT: ttft.to_data()})
    series_ingest(source="r", seq=1, at=timezone.now() - timedelta(seconds=ago_s), series=[delta])


def _append(sentence: str, stage: str = "m/s") -> int:
    return event_append(kind="test.kind", sentence=sentence, stage=stage)


def test_metrics_of_a_stage(client: Client) -> None:
    _serve(20)
    body = client.get("/api/v1/stages/m/s/metrics?since=1m").json()
    assert (body["stage"], body["by"]) == ("m/s", "release")
    (group,) = body["groups"]
    assert (group["group"], group["requests"]) == ("m@1", 20)
    assert group["latencies"]["ttft"]["p50_s"] == pytest.approx(0.25, rel=0.011)
    assert group["latencies"]["ttft"]["p99_is_bound"] is True


def test_the_command_says_what_the_slowest_took_and_what_a_gpu_brings() -> None:
    view = figures_of(stage="ds-flash/prod-us", span_s=60)
    mixed = replace(view.groups[1], group="ds-flash@7+ds-flash@8")  # a pool of it is still the earlier release's
    text = metrics_text(replace(view, groups=(view.groups[0], mixed)), samples.rolling_stage())
    assert re.search(r"release 7 \(90%\) +release 7\+8 \(10%, canary\) +alarm", text)
    assert re.search(r"of the slowest 1% +600  550  120  50 ms", text)
    assert re.search(r"goodput +0\.399/s a GPU  \(98\.3% within the limits, 72 GPUs\)", text), text


def test_the_command_says_who_waits_and_what_became_of_kv() -> None:
    text = metrics_text(figures_of(stage="ds-flash/prod-us", span_s=60), samples.rolling_stage())
    assert re.search(r"prefill queue +19 waiting, p99 610 ms", text)
    assert re.search(r"decode queue +0 waiting, 1,050 running", text)
    assert re.search(r"decode KV +70%, 0 preempted", text)
    assert re.search(r"KV transfers +109 MB each, 0 failed, 0 expired, 0 recomputed", text), text
    assert re.search(r"KV from prefill +83% of tokens", text)
    assert re.search(r"requests +1,752  29\.2/s  \(11 left by clients\)", text), text


def test_lines_of_a_stage(client: Client) -> None:
    _serve(20)
    body = client.get("/api/v1/stages/m/s/series?names=ttft.p99,requests&since=1m&step=10s").json()
    assert (body["step_s"], len(body["at"])) == (10.0, 6)
    lines = {line["name"]: line["values"] for line in body["lines"]}
    assert 2.0 in lines["requests"]
    assert None in lines["ttft.p99"]


def test_an_unknown_stage_is_empty(client: Client) -> None:
    assert client.get("/api/v1/stages/no/such/metrics").json()["groups"] == []
    assert client.get("/api/v1/stages/no/such/series?names=requests").json()["lines"] == []
    assert client.get("/api/v1/stages/no/such/events").json() == {"results": [], "next": None}


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("stages/m/s/metrics?since=soon", "since"),
        ("stages/m/s/metrics?since=0s", "since"),
        ("stages/m/s/metrics?since=99999d", "since"),
        ("stages/m/s/metrics?by=colour", "by"),
        ("stages/m/s/series", "names"),
        ("stages/m/s/series?names=ttft.p98", "names"),
        ("stages/m/s/series?names=requests&step=-1", "step"),
        ("stages/m/s/events?limit=0", "limit"),
        ("events?before=x", "before"),
    ],
)
def test_a_bad_parameter_is_named(client: Client, path: str, field: str) -> None:
    response = client.get(f"/api/v1/{path}")
    assert response.status_code == 400
    assert set(response.json()) == {"code", "detail", "fields", "request_id"}
    assert field in response.json()["fields"]


def test_too_many_points_are_refused(client: Client) -> None:
    response = client.get("/api/v1/stages/m/s/series?names=requests&since=30d&step=10s")
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert "at most 2,000" in response.json()["detail"]


def test_pages_of_the_journal(client: Client) -> None:
    numbers = [_append(f"event {i}") for i in range(5)]
    _append("elsewhere", stage="m/other")
    first = client.get("/api/v1/stages/m/s/events?limit=3").json()
    assert [event["seq"] for event in first["results"]] == numbers[:1:-1]
    second = client.get(f"/api/v1/stages/m/s/events?limit=3&before={first['next']}").json()
    assert [event["seq"] for event in second["results"]] == numbers[1::-1]
    assert second["next"] is None
    assert len(client.get("/api/v1/events?model=m").json()["results"]) == 6
    assert [event["sentence"] for event in client.get("/api/v1/events?stage=m/other").json()["results"]] == ["elsewhere"]


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["stages/m/s/metrics", "stages/m/s/series?names=requests", "events", "stream"])
def test_strangers_are_refused(path: str) -> None:
    response = Client().get(f"/api/v1/{path}")
    assert response.status_code == 401
    assert response.json()["code"] == "not-authenticated"


# ---- the stream ----


class _Reader:
    """Reads a stream as a browser's EventSource does."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._text = ""

    async def block(self) -> dict[str, str]:
        """The fields of the next block; a comment is under the empty name."""
        async with asyncio.timeout(10):
            while "\n\n" not in self._text:
                self._text += (await anext(self._chunks)).decode()
        block, _, self._text = self._text.partition("\n\n")
        return {name: value.strip() for name, _, value in (line.partition(":") for line in block.split("\n"))}

    async def event(self) -> tuple[int, str]:
        """The number and the sentence of the next event."""
        block = await self.block()
        while "data" not in block:
            block = await self.block()
        body = json.loads(block["data"])
        assert block["event"] == "journal"
        assert int(block["id"]) == body["seq"]
        return body["seq"], body["sentence"]


@asynccontextmanager
async def _streaming(token: str, query: str = "", **headers: str) -> AsyncIterator[_Reader]:
    async with _client() as client:
        response: Any = await client.get(f"/api/v1/stream{query}", headers={"Authorization": f"Bearer {token}", **headers})
        assert response.status_code == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        async with aclosing(aiter(response)) as chunks:
            yield _Reader(chunks)


@pytest.fixture
def token(transactional_db: None) -> str:
    return token_create(user=User.objects.create_user("ada"))


@asynccontextmanager
async def _client() -> AsyncIterator[AsyncClient]:
    """Async code reaches the database from a thread of its own, whose connection would keep the test database in use."""
    try:
        yield AsyncClient()
    finally:
        await sync_to_async(lambda: connection.close())()  # not the attribute: it would be this thread's connection


append = sync_to_async(_append)


async def test_what_was_missed_comes_first_and_then_what_happens(token: str) -> None:
    first = await append("first")
    missed = [await append("second"), await append("third")]
    async with _streaming(token, **{"Last-Event-ID": str(first)}) as reader:
        assert (await reader.block())["retry"] == "2000"
        assert [await reader.event() for _ in missed] == [(missed[0], "second"), (missed[1], "third")]
        live = await append("live")
        assert await reader.event() == (live, "live")


async def test_a_first_connection_starts_now_and_may_keep_to_one_stage(token: str) -> None:
    await append("before")
    async with _streaming(token, "?stage=m/s") as reader:
        await reader.block()
        await append("other", stage="m/other")
        mine = await append("mine")
        assert await reader.event() == (mine, "mine")


async def test_a_poke_brings_an_event_at_once(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrics.api.stream._LOOK_AGAIN_S", 60.0)  # longer than the reader waits: only a poke can bring it
    async with _streaming(token) as reader:
        await reader.block()
        await append("now")
        assert (await reader.event())[1] == "now"


async def test_a_quiet_stream_shows_that_it_is_alive(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrics.api.stream._HEARTBEAT_S", 0.0)
    async with _streaming(token, "?stage=m/s") as reader:
        await reader.block()
        other = await append("other", stage="m/other")
        async with asyncio.timeout(30):
            block = await reader.block()
            while block["id"] != str(other):  # where it connects again from, although it was none of its business
                block = await reader.block()
        assert block[""] == f"alive, at {other}" and "data" not in block


async def test_a_browser_s_session_may_follow_too(token: str) -> None:
    async with _client() as client:
        await client.aforce_login(await User.objects.aget(username="ada"))
        response: Any = await client.get("/api/v1/stream")
        assert response.status_code == 200
        async with aclosing(aiter(response)) as chunks:
            assert b"retry" in await anext(chunks)


@pytest.mark.parametrize("how", ["token", "session", "time", "password"])
async def test_a_stream_ends_when_its_caller_may_no_longer_listen(token: str, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr("metrics.api.stream._CHECK_AGAIN_S", 0.0)
    monkeypatch.setattr("metrics.api.stream._LOOK_AGAIN_S", 0.05)
    async with _client() as client:
        headers = {"Authorization": f"Bearer {token}"} if how == "token" else {}
        if how != "token":
            await client.aforce_login(await User.objects.aget(username="ada"))
        response: Any = await client.get("/api/v1/stream", headers=headers)
        async with aclosing(aiter(response)) as chunks, asyncio.timeout(20):
            assert b"retry" in await anext(chunks)
            await append("heard")  # so that it was looked at once who listens
            assert b"heard" in await anext(chunks)
            if how == "token":
                await ApiToken.objects.aupdate(revoked_at=timezone.now())
            elif how == "time":
                await Session.objects.aupdate(expire_date=timezone.now())
            elif how == "password":
                await User.objects.filter(username="ada").aupdate(password=make_password(None))
            else:
                await client.alogout()
            assert [chunk async for chunk in chunks if b"data:" in chunk] == []


async def test_an_open_stream_keeps_no_database_connection(token: str) -> None:
    async with _streaming(token) as reader:
        await reader.block()
        assert await sync_to_async(lambda: connection.connection is None)()


async def test_streams_are_not_opened_without_bound(token: str, settings: Any) -> None:
    settings.API_REQUESTS_PER_S = 0.1
    throttle._buckets.clear()
    headers = {"Authorization": f"Bearer {token}"}
    async with _streaming(token) as reader, _client() as client:
        await reader.block()
        for path in ("stream", "stages/m/s/logs?pool=decode"):
            response = await client.get(f"/api/v1/{path}", headers=headers)
            assert (response.status_code, response.json()["code"]) == (429, "throttled"), path
            assert 1 <= int(response.headers["Retry-After"]) <= 10


@pytest.mark.parametrize("text", ["-1", "x", "9" * 30])
async def test_a_bad_last_event_id_is_refused(token: str, text: str) -> None:
    async with _client() as client:
        response = await client.get("/api/v1/stream", headers={"Authorization": f"Bearer {token}", "Last-Event-ID": text})
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
