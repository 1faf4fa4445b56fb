"""A Slack of one workspace, as a process of its own: `python -m tests.integration.slack_fake --denv http://...`.

It takes messages as Slack does (bearer, Block Kit's limits, errors, rate limits), signs and sends commands and clicks, wants an
answer within three seconds, and gives out response_urls that are good five times in half an hour. With --socket it sends them over
the connection that the app has opened (Socket Mode). It shares no code with denv.
`/_...` are the tests' own doors: what is seen, what it should do next.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode

from tests.integration.slack_fake_socket import APP_TOKEN, Link

SECRET, TOKEN, TEAM = "8f742231b10e8888abcd99yyyzzz85a5", "xoxb-the-bot", "T0000000001"
CHANNEL = "C0000000001"  # the bot is in this one, and in no other
ACK_S, USES, GOOD_FOR_S = 3.0, 5, 1800.0


@dataclass
class Workspace:
    """All that is known. One lock: requests come in threads."""

    url: str = ""
    denv: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    messages: list[dict[str, Any]] = field(default_factory=list)
    replies: list[dict[str, Any]] = field(default_factory=list)
    hooks: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)  # given out, oldest first, before anything is taken
    refused: list[str] = field(default_factory=list)
    last: tuple[str, bytes, dict[str, str]] = ("", b"", {})
    link: Link | None = None  # with Socket Mode


def text_problem(text: Any, most: int, kinds: tuple[str, ...] = ("plain_text", "mrkdwn")) -> str:
    if not isinstance(text, dict) or text.get("type") not in kinds:
        return f"no text object: {text!r}"
    return "" if 0 < len(text.get("text", "")) <= most else f"a text of {len(text.get('text', ''))} characters, most {most}"


def button_problem(element: dict[str, Any]) -> str:
    if element.get("type") != "button" or not 0 < len(element.get("action_id", "")) <= 255:
        return "no button, or one without an action_id"
    if len(element.get("value", "")) > 2000 or element.get("style", "primary") not in {"primary", "danger"}:
        return "a value too long, or a style that is none"
    confirm = element.get("confirm") or {}
    parts = (("title", 100), ("text", 300), ("confirm", 30), ("deny", 30)) if confirm else ()
    problems = [text_problem(element.get("text"), 75, ("plain_text",)), *(text_problem(confirm.get(name), most) for name, most in parts)]
    return next(filter(None, problems), "")


def block_problem(block: dict[str, Any]) -> str:
    kind = block.get("type")
    if kind == "section":
        return text_problem(block.get("text"), 3000)
    if kind == "context":
        elements = block.get("elements", [])
        if not 0 < len(elements) <= 10:
            return f"{len(elements)} elements of a context"
        return next(filter(None, (text_problem(element, 3000) for element in elements)), "")
    if kind == "actions":
        elements = block.get("elements", [])
        if not 0 < len(elements) <= 25:
            return f"{len(elements)} elements of actions"
        return next(filter(None, map(button_problem, elements)), "")
    return f"block of type {kind}"


def blocks_problem(blocks: Any) -> str:
    if not isinstance(blocks, list) or len(blocks) > 50:
        return "more than 50 blocks, or no list"
    ids = [element.get("action_id") for block in blocks for element in block.get("elements", []) if "action_id" in element]
    if len(ids) != len(set(ids)):
        return "an action_id twice"
    return next(filter(None, map(block_problem, blocks)), "")


def signed(body: bytes) -> dict[str, str]:
    stamp = str(int(time.time()))
    digest = hmac.new(SECRET.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={digest}"}


class Handler(BaseHTTPRequestHandler):
    """All doors."""

    here: Workspace

    def log_message(self, *args: Any) -> None: ...

    def answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def body(self) -> dict[str, Any]:
        raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.headers.get("Content-Type", "").startswith("application/json"):
            return dict(json.loads(raw or b"{}"))
        return {name: values[0] for name, values in parse_qs(raw.decode()).items()}

    def do_GET(self) -> None:
        with self.here.lock:
            self.answer(200, {"messages": self.here.messages, "replies": self.here.replies, "refused": self.here.refused})

    def do_POST(self) -> None:
        doors = {"/_errors": self.set_errors, "/_command": self.send_command, "/_click": self.send_click, "/_again": self.send_again,
                 "/_raw": self.send_raw, "/_refresh": self.refresh, "/_envelope": self.send_envelope,
                 "/api/chat.postMessage": self.post_message, "/api/apps.connections.open": self.open_connection}  # fmt: skip
        if self.path.startswith("/hooks/"):
            return self.take_reply()
        return doors[self.path](self.body())

    # ---- as Slack ----

    def post_message(self, data: dict[str, Any]) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse("invalid_auth")
        with self.here.lock:
            error = self.here.errors.pop(0) if self.here.errors else None
        if error is not None:
            return self.refuse(error["error"], error.get("status", 200), error.get("headers"))
        if data.get("channel") != CHANNEL:
            return self.refuse("not_in_channel")
        blocks = data.get("blocks")
        if problem := blocks_problem(json.loads(blocks) if isinstance(blocks, str) else blocks):
            return self.refuse("invalid_blocks", detail=problem)
        with self.here.lock:
            if (thread := data.get("thread_ts")) and thread not in [message["ts"] for message in self.here.messages]:
                return self.answer(200, {"ok": False, "error": "thread_not_found"})
            ts = f"1700000000.{len(self.here.messages):06d}"
            self.here.messages.append({**data, "ts": ts})
        return self.answer(200, {"ok": True, "channel": CHANNEL, "ts": ts})

    def open_connection(self, data: dict[str, Any]) -> None:
        if self.headers.get("Authorization") != f"Bearer {APP_TOKEN}" or self.here.link is None:
            return self.refuse("invalid_auth")
        return self.answer(200, {"ok": True, "url": self.here.link.ticket()})

    def refuse(self, error: str, status: int = 200, headers: dict[str, str] | None = None, detail: str = "") -> None:
        with self.here.lock:
            self.here.refused.append(f"{error} {detail}".strip())
        self.answer(status, {"ok": False, "error": error}, headers)

    def take_reply(self) -> None:
        data = self.body()
        with self.here.lock:
            hook = self.here.hooks.get(self.path)
            if hook is None or hook["uses"] >= USES or time.monotonic() - hook["at"] > GOOD_FOR_S:
                return self.answer(404, {"ok": False, "error": "used_url"})
            if problem := blocks_problem(data.get("blocks", [])):
                self.here.refused.append(f"invalid_blocks {problem}")
                return self.answer(400, {"ok": False, "error": "invalid_blocks"})
            hook["uses"] += 1
            self.here.replies.append(data)
            if data.get("replace_original"):
                next(message for message in self.here.messages if message["ts"] == hook["ts"]).update(blocks=data["blocks"])
        return self.answer(200, {"ok": True})

    # ---- the tests' doors ----

    def set_errors(self, data: dict[str, Any]) -> None:
        with self.here.lock:
            self.here.errors = data["errors"]
        self.answer(200, {})

    def hook_for(self, ts: str) -> str:
        with self.here.lock:
            path = f"/hooks/{len(self.here.hooks)}"
            self.here.hooks[path] = {"uses": 0, "at": time.monotonic(), "ts": ts}
        return self.here.url + path

    def send_command(self, data: dict[str, Any]) -> None:
        form = {"team_id": TEAM, "user_id": data["user"], "user_name": "roadrunner", "command": "/denv", "text": data["text"],
                "response_url": self.hook_for(""), "trigger_id": f"{time.monotonic_ns()}"}  # fmt: skip
        if self.here.link is not None:
            return self.send_envelope({"kind": "slash_commands", "payload": form})
        return self.send("/slack/command", urlencode(form).encode())

    def send_click(self, data: dict[str, Any]) -> None:
        with self.here.lock:
            message = next(message for message in self.here.messages if message["ts"] == data["ts"])
        shown = data.get("blocks") or message["blocks"]
        pressed = [element for block in shown for element in block.get("elements", []) if element.get("action_id") == data["action_id"]]
        if not pressed:
            return self.answer(200, {"status": 0, "body": "there is no such button any more"})
        url = data.get("response_url") or self.hook_for(message["ts"])
        payload = {"type": "block_actions", "team": {"id": TEAM}, "user": {"id": data["user"], "username": "roadrunner"},
                   "message": message, "response_url": url, "trigger_id": f"{time.monotonic_ns()}", "actions": pressed}  # fmt: skip
        if self.here.link is not None:
            return self.send_envelope({"kind": "interactive", "payload": payload})
        return self.send("/slack/interaction", urlencode({"payload": json.dumps(payload)}).encode())

    def send_envelope(self, data: dict[str, Any]) -> None:
        """As `send`, over the connection: what is not acknowledged in time has failed for Slack's user."""
        assert self.here.link is not None
        began = time.monotonic()
        envelope = data.get("envelope") or f"e-{time.monotonic_ns()}"
        ack = self.here.link.send(envelope, data["kind"], data["payload"], data.get("within_s", ACK_S))
        status, body = (200, json.dumps(ack.get("payload"))) if ack is not None else (0, "operation_timeout")
        self.answer(200, {"status": status, "body": body, "envelope": envelope, "took_s": time.monotonic() - began})

    def refresh(self, data: dict[str, Any]) -> None:
        assert self.here.link is not None
        self.answer(200, {"opened": self.here.link.refresh()})

    def send_again(self, data: dict[str, Any]) -> None:
        path, body, headers = self.here.last
        self.send(path, body, headers)

    def send_raw(self, data: dict[str, Any]) -> None:
        body = data["body"].encode()
        self.send(data["path"], body, {**signed(body), **data.get("headers", {})})

    def send(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Answers the test with what denv said, and with `operation_timeout` where Slack's user would read that."""
        self.here.last = (path, body, headers or signed(body))
        request = urllib.request.Request(self.here.denv + path, body, self.here.last[2])
        began = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=ACK_S) as response:
                status, text = response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        except TimeoutError:
            status, text = 0, "operation_timeout"
        self.answer(200, {"status": status, "body": text, "took_s": time.monotonic() - began})


def end_with_the_starter(server: ThreadingHTTPServer) -> None:
    sys.stdin.read()
    server.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--denv", required=True)
    parser.add_argument("--socket", action="store_true")
    options = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    link = Link() if options.socket else None
    Handler.here = Workspace(url=f"http://127.0.0.1:{server.server_port}", denv=options.denv, link=link)
    print(Handler.here.url, flush=True)
    threading.Thread(target=end_with_the_starter, args=(server,), daemon=True).start()
    server.serve_forever(0.05)


if __name__ == "__main__":
    main()
