"""HTTP as it may arrive: in pieces, in rows, too long, or not HTTP at all."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from fleets.router.client import ClientConnection, Handler
from fleets.router.heads import RequestHead, RequestHeads
from fleets.router.outbox import Outbox
from tests.integration.fake_engine import WORDS, engines
from tests.integration.router_bench import chat, message, plain_unit, router, table


class _Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.out = b""
        self.ended = False
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.out += bytes(data)

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


@dataclass
class _Got:
    """One request."""

    head: RequestHead
    body: bytes

    @property
    def path(self) -> str:
        return self.head.path


class _Echo:
    """Answers each request with its own parts, at once."""

    draining = False
    max_body_bytes = 1000
    max_header_bytes = 2000

    def __init__(self, heads: RequestHeads | None = None) -> None:
        self.requests: list[_Got] = []
        self.hold = False
        self.heads = heads or RequestHeads()
        self.outbox = Outbox()

    def handle(self, head: RequestHead, body: bytes, client: ClientConnection) -> None:
        self.requests.append(_Got(head, body))
        if not self.hold:
            client.respond(200, body, [])

    def opened(self, client: ClientConnection) -> None: ...

    def closed(self, client: ClientConnection) -> None: ...


def _connection(echo: _Echo) -> tuple[ClientConnection, _Transport]:
    client, transport = ClientConnection(cast(Handler, echo)), _Transport()
    client.connection_made(transport)
    return client, transport


REQUESTS = (
    b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nX-Odd:  v \r\nContent-Length: 5\r\n\r\nhello"
    b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\n\r\n"
)


async def test_requests_split_at_every_byte_boundary() -> None:
    for cut in range(1, len(REQUESTS)):
        echo = _Echo()
        client, transport = _connection(echo)
        client.data_received(REQUESTS[:cut])
        client.data_received(REQUESTS[cut:])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [(r.head.method, r.path, r.body) for r in echo.requests] == [
            (b"POST", "/v1/completions", b"hello"), (b"GET", "/health", b""), (b"POST", "/v1/completions", b"abcdefg")
        ], cut  # fmt: skip
        assert echo.requests[0].head.header(b"x-odd").strip() == b"v" and echo.requests[0].head.target == b"/v1/completions?x=1"
        assert transport.out.count(b"HTTP/1.1 200 OK") == 3 and not transport.ended


async def test_requests_byte_by_byte() -> None:
    echo = _Echo()
    client, transport = _connection(echo)
    for index in range(len(REQUESTS)):
        client.data_received(REQUESTS[index : index + 1])
        await asyncio.sleep(0)
    assert [r.body for r in echo.requests] == [b"hello", b"", b"abcdefg"]
    assert transport.out.count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /x HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (b"GET /x HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 3000, 431),
        (b"POST /x HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", 413),
        (b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"z" * 1001, 413),
    ],
)
async def test_what_cannot_be_served_is_refused_and_ends_the_connection(data: bytes, status: int) -> None:
    echo = _Echo()
    client, transport = _connection(echo)
    client.data_received(data)
    assert transport.out.startswith(b"HTTP/1.1 %d " % status), transport.out
    assert "error" in json.loads(transport.out.partition(b"\r\n\r\n")[2])
    assert transport.ended and not echo.requests


async def test_a_bad_request_behind_a_good_one_waits_its_turn() -> None:
    echo = _Echo()
    echo.hold = True
    client, transport = _connection(echo)
    client.data_received(b"GET /a HTTP/1.1\r\n\r\nrubbish\r\n\r\n")
    assert not transport.out
    client.respond(200, b"first", [])
    await asyncio.sleep(0)
    assert transport.out.index(b"first") < transport.out.index(b"HTTP/1.1 400")
    assert transport.ended


async def test_pipelined_requests_are_bounded() -> None:
    echo = _Echo()
    echo.hold = True
    client, transport = _connection(echo)
    client.data_received(b"GET /a HTTP/1.1\r\n\r\n" * 40)
    assert len(echo.requests) == 1
    assert transport.reading is False
    for _ in range(40):
        client.respond(200, b"", [])
        await asyncio.sleep(0)
    assert len(echo.requests) == 40
    assert transport.reading


async def test_expect_100_continue() -> None:
    echo = _Echo()
    client, transport = _connection(echo)
    client.data_received(b"POST /x HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert transport.out == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.data_received(b"abc")
    assert echo.requests[0].body == b"abc"


async def test_an_offer_to_upgrade_is_ignored() -> None:
    echo = _Echo()
    client, transport = _connection(echo)
    offer = b"Host: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    client.data_received(
        b"GET /a HTTP/1.1\r\n"
        + offer
        + b"\r\n"
        + b"POST /b HTTP/1.1\r\nContent-Length: 2\r\n"
        + offer
        + b"\r\nok"
        + b"GET /c HTTP/1.1\r\n\r\n"
    )
    await asyncio.sleep(0)
    assert [r.path for r in echo.requests] == ["/a", "/b", "/c"] and not transport.ended


async def test_http10_gets_no_chunks(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat()).replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await raw.read_answer()
        assert answer.text == "".join(WORDS) and "transfer-encoding" not in answer.headers and answer.headers["connection"] == "close"


async def test_streams_pipelined_on_one_connection_come_in_order(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        raw = await bench.connect()
        raw.writer.write(message(chat("first")) + message(chat("second", stream=False)) + message(b"", path="/health", method="GET"))
        assert (await raw.read_answer()).text == "".join(WORDS)
        assert (await raw.read_answer()).json["usage"]["completion_tokens"] == len(WORDS)
        assert (await raw.read_answer()).json == {"status": "ok"}
        assert [post.body["messages"][0]["content"] for post in a.posts] == ["first", "second"]
        assert a.connections == 1  # kept and used again


async def test_a_slow_client_stops_the_engine(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        a.words = tuple("x" * 200_000 for _ in range(120))
        raw = await bench.connect()
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a stream's transport is a read transport too
        raw.writer.write(message(chat()))
        post = await a.next_post()
        sent = -1
        while sent != post.words_sent:  # until nothing moves any more: all buffers between are full
            sent = post.words_sent
            await asyncio.sleep(0.1)
        assert sent < 120 and not post.ended.is_set()
        raw.writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
        answer = await raw.read_answer()
        assert len(answer.body) > 120 * 200_000 and answer.events[-1] == "[DONE]"
