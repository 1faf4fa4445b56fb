"""The agent's small HTTP client against a server that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from denvweb.core.errors import UnavailableError
from fleets.agent.http import HttpClient

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
Serve = Callable[[Answer], Awaitable[str]]


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    made = HttpClient()
    yield made
    made.close()


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[asyncio.Server] = []

    async def start(answer: Answer) -> str:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    await answer(head, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        servers.append(await asyncio.start_server(connected, "127.0.0.1", 0))
        return f"http://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()


async def test_connections_are_used_again_and_replaced_when_the_server_closed_them(client: HttpClient, serve: Serve) -> None:
    peers: list[object] = []

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("peername"))
        writer.write(OK)
        if b"/last" in head:
            writer.close()

    url = await serve(answer)
    for path in ("/a", "/b", "/last", "/c"):
        assert bytes((await client.request("GET", url + path)).body) == b"ok"
    assert peers[0] == peers[1] == peers[2] != peers[3]


async def test_chunks_and_pieces_are_put_together(client: HttpClient, serve: Serve) -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        for piece in (b"HTTP/1.1 503 Busy\r\nTransfer-", b"Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    answered = await client.request("POST", await serve(answer), body=b"{}")
    assert (answered.status, bytes(answered.body)) == (503, b"abcde")


async def test_silence_nonsense_and_nobody_are_unavailable(client: HttpClient, serve: Serve) -> None:
    async def silent(head: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0)

    async def nonsense(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9\r\n\r\n")

    async def cut(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        writer.close()

    with pytest.raises(UnavailableError, match=r"did not answer within 0.05 s"):
        await client.request("GET", await serve(silent), timeout_s=0.05)
    for broken in (nonsense, cut):
        with pytest.raises(UnavailableError):
            await client.request("GET", await serve(broken), timeout_s=2.0)
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
        await client.request("GET", "http://127.0.0.1:1/")


async def test_a_cancelled_request_leaves_no_connection_behind(client: HttpClient, serve: Serve) -> None:
    asked = asyncio.Event()
    heads: list[bytes] = []

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        asked.set()
        if b"/second" in head:
            writer.write(OK)

    url = await serve(answer)
    first = asyncio.create_task(client.request("GET", url + "/first"))
    await asked.wait()
    first.cancel()
    assert (await client.request("GET", url + "/second", timeout_s=2.0)).status == 200
    assert len(heads) == 2
