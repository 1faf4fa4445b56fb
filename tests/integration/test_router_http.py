"""Fuzz of what the router reads by hand: heads that it knows, chunks, streams; and requests that mean two things (RFC 9112)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleets.router.answer import Answer
from fleets.router.chunks import ChunkError, Unchunker, size_of, text_chunks, whole_chunks
from fleets.router.heads import AnswerHeads, HeadError, RequestHead, RequestHeads, parse_answer
from fleets.router.relay import Relay
from fleets.router.taker import LegError, Taker
from fleets.router.telemetry import Trace
from fleets.router.upstream import Connection, Pool
from tests.integration.fake_engine import engines
from tests.integration.router_bench import chat, message, plain_unit, router, table
from tests.integration.test_router_framing import _connection, _Echo, _Transport

HEADS = (
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\ncontent-length: %d\r\n\r\n",
    b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nX-Odd: v\r\n\r\n",
    b"POST /b HTTP/1.1\r\nHOST: a\r\nCONTENT-LENGTH: %d\r\n\r\n",
    b"POST /c HTTP/1.1\r\nHost: a\r\nx-request-id: %d\r\ncontent-length: 0\r\n\r\n",
)
requests = st.lists(st.tuples(st.integers(0, len(HEADS)), st.binary(max_size=40)), min_size=1, max_size=6)


def _wire(kind: int, body: bytes) -> tuple[bytes, bytes]:
    """A request's bytes, and the body that must be read of it."""
    if kind == len(HEADS):
        return b"POST /t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % (
            b"%x;e=1\r\n%b\r\n" % (len(body), body) if body else b""
        ), body
    if kind == 3:
        return HEADS[3] % len(body), b""
    return HEADS[kind] % len(body) + body, body


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[start:stop] for start, stop in zip([0, *places], [*places, len(data)], strict=True) if start < stop]


def _read(heads: RequestHeads, pieces: list[bytes]) -> tuple[list[tuple[str, bytes]], bytes]:
    """What is read of the pieces, and what goes out."""

    async def run() -> tuple[list[tuple[str, bytes]], bytes]:
        echo = _Echo(heads)
        client, transport = _connection(echo)
        for piece in pieces:
            client.data_received(piece)
            await asyncio.sleep(0)
        for _ in range(12):
            await asyncio.sleep(0)
        return [(got.path, got.body) for got in echo.requests], transport.out

    return asyncio.run(run())


@settings(deadline=None, max_examples=60)
@given(requests, st.lists(st.integers(0, 2000), max_size=8), st.lists(st.integers(0, 2000), max_size=8))
def test_requests_in_any_pieces_are_the_same_for_known_and_new_heads(
    asked: list[tuple[int, bytes]], first_cuts: list[int], second_cuts: list[int]
) -> None:
    wires = [_wire(kind, body) for kind, body in asked]
    data = b"".join(wire for wire, _ in wires)
    heads = RequestHeads()
    new, new_out = _read(heads, _pieces(data, first_cuts))
    known, known_out = _read(heads, _pieces(data, second_cuts))
    whole, whole_out = _read(heads, [data])
    assert [body for _, body in new] == [body for _, body in wires]
    assert new == known == whole and new_out == known_out == whole_out


@settings(deadline=None, max_examples=150)
@given(st.lists(st.binary(max_size=60), max_size=6), st.lists(st.integers(0, 500), max_size=6))
def test_garbage_never_breaks_the_reader(garbage: list[bytes], cuts: list[int]) -> None:
    data = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\ncontent-length: 2\r\n\r\nok" + b"\r\n".join(garbage)
    got, out = _read(RequestHeads(), _pieces(data, cuts))
    assert got[0] == ("/v1/completions", b"ok")
    assert out.count(b"HTTP/1.1 400") + out.count(b"HTTP/1.1 413") + out.count(b"HTTP/1.1 431") <= 1


SMUGGLED = [
    b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: a\r\ncontent-length: 2\r\nContent-Length: 2\r\n\r\nok",
    b"POST /x HTTP/1.1\r\nHost: a\r\ncontent-length: 2\r\ncontent-length: 40\r\n\r\nok",
    b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2, 2\r\n\r\nok",
    b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: +2\r\n\r\nok",
    b"POST /x HTTP/1.1\r\nHost: a\r\ncontent-length: 0x2\r\n\r\nok",
    b"POST /x HTTP/1.1\r\nHost: a\r\ncontent-length: 2 2\r\n\r\nok",
    b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length : 2\r\n\r\nok",
    b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2 \r\nokX\r\n0\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: a\r\nX\r\n\r\n",
    b"POST /x HTTP/1.1\nHost: a\r\n\r\n",
    b"POST /x HTTP/2.7\r\nHost: a\r\n\r\n",
]


@pytest.mark.parametrize("data", SMUGGLED)
def test_a_request_with_two_meanings_is_refused_and_ends_the_connection(data: bytes) -> None:
    got, out = _read(RequestHeads(), [data + b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"])
    assert not got and out.startswith(b"HTTP/1.1 400 "), (got, out)


def test_a_known_head_with_other_digits_is_checked_as_a_new_one() -> None:
    heads = RequestHeads()
    head = b"POST /x HTTP/1.1\r\nHost: a\r\ncontent-length: %b\r\n\r\n"
    assert _read(heads, [head % b"2" + b"ok"])[0] == [("/x", b"ok")]
    assert _read(heads, [head % b"3" + b"yes"])[0] == [("/x", b"yes")]
    for digits in (b"-1", b"+2", b"1_0", b" ", b"", b"2a", b"\xb2", b"9" * 30):
        got, out = _read(heads, [head % digits + b"ok"])
        assert not got and (out.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413")) or not out), (digits, got, out)


def test_a_head_that_is_known_is_not_one_that_only_looks_like_it() -> None:
    heads = RequestHeads()
    _read(heads, [b"POST /x HTTP/1.1\r\nHost: a\r\ncontent-length: 2\r\n\r\nok"])
    twice = b"POST /x HTTP/1.1\r\nHost: a\r\ncontent-length: 2\r\nContent-Length: 3\r\n\r\nokk"
    assert _read(heads, [twice])[1].startswith(b"HTTP/1.1 400")
    assert _read(heads, [b"\r\n\r\nPOST /x HTTP/1.1\r\nHost: a\r\ncontent-length: 2\r\n\r\nok"])[0] == [("/x", b"ok")]
    assert _read(heads, [b"\r\n\r\nGET /y HTTP/1.1\r\nHost: a\r\n\r\n"])[0] == [("/y", b"")]


def test_the_store_of_heads_is_bounded() -> None:
    heads = RequestHeads()
    for number in range(2000):
        heads.find(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % number)
        heads.keep(heads.key, RequestHead(b"GET", b"/%d" % number, [(b"host", b"a")]))
    assert len(heads._known) <= 512
    assert heads.find(b"GET /1999 HTTP/1.1\r\nhost: a\r\n\r\n") is not None


chunks = st.lists(st.binary(min_size=1, max_size=50), max_size=8)


@settings(deadline=None)
@given(chunks, st.lists(st.integers(0, 2000), max_size=10), st.binary(max_size=5))
def test_chunks_in_any_pieces(parts: list[bytes], cuts: list[int], behind: bytes) -> None:
    framed = b"".join(b"%x;a=b\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nx-trailer: 1\r\n\r\n"
    unchunker, got = Unchunker(), b""
    for piece in _pieces(framed, cuts):
        assert not unchunker.done
        got += unchunker.feed(piece)
    assert got == b"".join(parts) and unchunker.done
    again = Unchunker()
    assert again.feed(framed + behind) == got and again.rest == behind


BAD_CHUNKS = [
    b"zz\r\n", b"-1\r\n", b"+5\r\n", b"0x5\r\n", b"1_0\r\n", b"\r\n", b"fffffffff\r\n", b"2\r\nabX", b"2\r\nab\rX", b"1" * 2000,
]  # fmt: skip


@pytest.mark.parametrize("data", BAD_CHUNKS)
def test_bad_chunks(data: bytes) -> None:
    with pytest.raises(ChunkError):
        Unchunker().feed(data)
    assert whole_chunks(data) == 0


def test_whole_chunks_are_told_from_others() -> None:
    event = b"data: {}\n\n"
    chunk = b"%x\r\n%b\r\n" % (len(event), event)
    size_of(b"%x" % len(event))
    size_of(b"0")
    assert whole_chunks(chunk * 3) == 3 * len(chunk)
    assert whole_chunks(chunk + b"0\r\n\r\n") == -(len(chunk) + 5)
    assert whole_chunks(chunk[:-1]) == whole_chunks(chunk + b"5\r\nab") == whole_chunks(chunk + b"0\r\nx: y\r\n\r\n") == 0
    assert whole_chunks(b"3\r\nab\n\r\n") == 0
    assert text_chunks(chunk, b"data: {", b"}\n\n\r\n") == (0, 0)  # there is no text between them


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\r\na b: c",
        b"HTTP/1.1 20 OK",
        b"HTTP/2 200 OK",
        b"nonsense",
        b"HTTP/1.1 200 OK\r\nx: a\nb",
    ],
)
def test_bad_heads_of_answers(text: bytes) -> None:
    with pytest.raises(HeadError):
        parse_answer(text)


def test_framing_of_answers() -> None:
    assert parse_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 5").keep
    assert not parse_answer(b"HTTP/1.0 200 OK\r\nContent-Length: 5").keep
    assert not parse_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: Close").keep
    both = parse_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked")
    assert both.chunked and not both.keep
    assert parse_answer(b"HTTP/1.1 204 No Content").length == 0 and not parse_answer(b"HTTP/1.1 200 OK").keep
    heads = AnswerHeads()
    assert heads.find(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n") is None
    first = heads.find(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
    assert first is not None and heads.length == 5
    assert heads.find(b"HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\nhello") is first and heads.length == 17


class _Takes:
    """Takes one answer, a stream through a relay."""

    def __init__(self) -> None:
        self.leg = None
        self.client, self.trace = Answer("test"), Trace(0.0)
        self.relay = Relay(self.client, self.trace, self, wants_usage=False)
        self.ends: list[str] = []

    def streamed(self, head: object, connection: Connection) -> Taker | None:
        return self.relay

    def text(self, data: bytes) -> int:
        return 0

    def events(self, data: bytes, framed: int) -> None: ...

    def ended(self) -> None: ...

    def answered(self, head: object, body: bytes) -> None:
        self.ends.append("answered")
        self.client.parts.append(body)

    def failed(self, error: LegError) -> None:
        self.ends.append(error.kind)

    def stream_ended(self) -> None:
        self.relay.finish_stream()
        self.ends.append("ended")

    def broken(self) -> None:
        self.ends.append("broken")


def _taken(pieces: list[bytes]) -> _Takes:
    async def run() -> _Takes:
        pool = Pool(connect_deadline_s=1)
        connection, taker = Connection(pool, ("127.0.0.1", 1)), _Takes()
        connection.connection_made(_Transport())
        connection.send(b"", cast(Taker, taker), kept=False, sent_s=0.0, first_s=1e9, total_s=1e9)
        for piece in pieces:
            connection.data_received(piece)
        return taker

    return asyncio.run(run())


texts = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(['"', "\\", '"usage":{', "[DONE]", "\n\n", "é", "{}", '""'])), max_size=7)


@settings(deadline=None, max_examples=120)
@given(texts, st.lists(st.integers(0, 3000), max_size=10), st.booleans(), st.integers(1, 3))
def test_a_stream_in_any_pieces_reaches_the_client_whole(words: list[str], cuts: list[int], usage: bool, together: int) -> None:
    deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}, *[{"content": word} for word in words], {}]
    events = [
        b"data: " + json.dumps({"id": "x", "choices": [{"index": 0, "delta": delta}]}, separators=(",", ":"), ensure_ascii=False).encode()
        for delta in deltas
    ]
    hidden = [b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'] if usage else []
    sent = [event + b"\n\n" for event in (*events, *hidden, b"data: [DONE]")]
    grouped = [b"".join(sent[start : start + together]) for start in range(0, len(sent), together)]
    wire = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    wire += b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in grouped) + b"0\r\n\r\n"
    taker = _taken(_pieces(wire, cuts))
    assert b"".join(taker.client.parts) == b"".join(event + b"\n\n" for event in (*events, b"data: [DONE]"))
    assert taker.ends == ["ended"] and taker.relay.done and not taker.relay.failure
    assert taker.trace.tokens == sum(bool(word) for word in words)
    assert (taker.trace.usage is not None) == usage


@settings(deadline=None, max_examples=150)
@given(st.lists(st.binary(max_size=80), max_size=5))
def test_an_engine_that_speaks_nonsense_fails_its_leg_and_nothing_else(garbage: list[bytes]) -> None:
    taker = _taken([b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n", *filter(None, garbage)])
    assert len(taker.ends) <= 1 and "broken" not in taker.ends


async def test_heads_and_bodies_have_limits_for_known_heads_too() -> None:
    echo = _Echo()
    client, transport = _connection(echo)
    head = b"POST /x HTTP/1.1\r\nHost: a\r\ncontent-length: %d\r\n\r\n"
    client.data_received(head % 2 + b"ok")
    client.data_received(head % 1001)
    await asyncio.sleep(0)
    assert len(echo.requests) == 1 and b"HTTP/1.1 413 " in transport.out and transport.ended


async def test_a_head_that_never_ends_and_a_body_that_never_comes_are_ended(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a]))) as bench:
        assert (await bench.ask(chat())).status == 200
        raws = [await bench.connect() for _ in range(3)]
        raws[0].writer.write(b"POST /v1/completions HT")
        raws[1].writer.write(message(chat())[:-5])
        raws[2].writer.write(message(chat("DPAUSE")))
        await a.next_post(2)
        for client in bench.app._clients:
            client.since_s -= 1000
        await bench.app._sweep()
        assert await raws[0].reader.read() == b"" and await raws[1].reader.read() == b""
        a.release.set()
        assert (await raws[2].read_answer()).events[-1] == "[DONE]"  # what is being answered is not idle


async def test_connections_have_a_limit(tmp_path: Path) -> None:
    async with engines("a") as (a,), router(tmp_path, table(plain_unit([a])), max_connections=2) as bench:
        first, second, third = [await bench.connect() for _ in range(3)]
        answer = await third.read_answer()
        assert answer.status == 503 and answer.json["error"]["code"] == "too_many_connections"
        for raw in (first, second):
            raw.writer.write(message(chat()))
            assert (await raw.read_answer()).status == 200
        first.writer.close()
        assert (await bench.ask(chat())).status in (200, 503)
