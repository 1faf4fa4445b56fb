"""A Hugging Face hub of one repository, as its client sees it: revisions, trees, HEAD with LFS headers, redirects to a CDN, ranges.

It can stop in the middle of a file, and wants a token where told so.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SHA = "c41a7e2" + "0" * 33


@dataclass
class FakeHub:
    """`files` by name; those over 1 kB are in LFS. After `cut_after` bytes of a file's body the connection breaks, once."""

    files: dict[str, bytes]
    repo: str = "org/tiny"
    token: str = ""
    cut_after: int = 0
    down: bool = False
    missing: set[str] = field(default_factory=set)  # files whose storage does not answer
    ranges: list[tuple[str, int]] = field(default_factory=list)  # name and first byte of each file that was asked for
    asked: int = 0
    url: str = ""
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> FakeHub:
        hub = self

        class Handler(_Handler):
            fake = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeHub

    def log_message(self, *args: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer()

    def _answer(self) -> None:
        hub, path = self.fake, self.path.partition("?")[0]
        hub.asked += 1
        if hub.down:
            return self._send(503, b"down")
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}" and not path.startswith("/cdn/"):
            return self._send(401, b'{"error": "gated"}', {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        if match := re.fullmatch(rf"/api/models/{hub.repo}(?:/revision/([^/]+))?", path):
            return self._info(match[1] or "main")
        if match := re.fullmatch(rf"/api/models/{hub.repo}/tree/([^/]+)/?", path):
            return self._send(200, json.dumps([_entry(name, data) for name, data in sorted(hub.files.items())]).encode())
        if match := re.fullmatch(rf"/{hub.repo}/resolve/([^/]+)/(.+)", path):
            return self._resolve(match[2])
        if match := re.fullmatch(r"/cdn/(.+)", path):
            return self._body(match[1])
        return self._send(404, b'{"error": "no such repository"}', {"X-Error-Code": "RepoNotFound"})

    def _info(self, revision: str) -> None:
        if revision not in (SHA, SHA[:7]):
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        siblings = [{"rfilename": name} for name in sorted(self.fake.files)]
        return self._send(200, json.dumps({"id": self.fake.repo, "sha": SHA, "siblings": siblings, "private": False}).encode())

    def _resolve(self, name: str) -> None:
        data = self.fake.files[name]
        head = {"X-Repo-Commit": SHA, "ETag": f'"{_etag(data)}"', "Accept-Ranges": "bytes"}
        if len(data) > 1000:
            linked = {
                "X-Linked-Size": str(len(data)),
                "X-Linked-Etag": f'"{_etag(data)}"',
                "Location": f"{self.fake.url.replace('127.0.0.1', 'localhost')}/cdn/{name}",
            }
            return self._send(302, b"", head | linked)
        return self._body(name, head)

    def _body(self, name: str, head: dict[str, str] | None = None) -> None:
        data, hub = self.fake.files[name], self.fake
        if name in hub.missing:
            return self._send(503, b"")
        match = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first = int(match[1]) if match else 0
        if match and match[2]:  # a piece: as for headers
            return self._send(206, data[first : int(match[2]) + 1], {"ETag": f'"{_etag(data)}"'})
        more = dict(head or {"ETag": f'"{_etag(data)}"', "Accept-Ranges": "bytes"})
        if first:
            more["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        if self.command == "GET":
            hub.ranges.append((name, first))
        if hub.cut_after and self.command == "GET" and len(data) > 1000:
            cut, hub.cut_after = hub.cut_after, 0
            self._send(206 if first else 200, data[first : first + cut], more, length=len(data) - first)
            self.close_connection = True
            return None
        return self._send(206 if first else 200, data[first:], more)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _entry(name: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
    if len(data) > 1000:
        entry["lfs"] = {"oid": _etag(data), "size": len(data), "pointerSize": 134}
    return entry
