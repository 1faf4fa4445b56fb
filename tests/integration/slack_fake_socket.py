"""Slack's end of Socket Mode, for `slack_fake`: connections that an app has opened, envelopes out, acknowledgements in."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

APP_TOKEN = "xapp-the-app"


class Link:
    """The app's connections, newest last. Slack gives an envelope to one of them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.open: list[ServerConnection] = []
        self.opened = 0
        self.acks: list[dict[str, Any]] = []
        self.tickets: set[str] = set()
        self.server: Server = serve(self._serve, "127.0.0.1", 0)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def ticket(self) -> str:
        """The address of a connection to come, good once, as apps.connections.open answers it."""
        with self.changed:
            name = f"t{len(self.tickets)}-{time.monotonic_ns()}"
            self.tickets.add(name)
        return f"ws://127.0.0.1:{self.server.socket.getsockname()[1]}/link/?ticket={name}"

    def _serve(self, connection: ServerConnection) -> None:
        name = connection.request.path.partition("ticket=")[2] if connection.request else ""
        with self.changed:
            if name not in self.tickets:
                return
            self.tickets.remove(name)
        connection.send(json.dumps({"type": "hello", "num_connections": 1}))
        with self.changed:
            self.open.append(connection)
            self.opened += 1
            self.changed.notify_all()
        with suppress(ConnectionClosed):
            for text in connection:
                if str(text).startswith("{"):
                    with self.changed:
                        self.acks.append(json.loads(text))
                        self.changed.notify_all()
        with self.changed:
            self.open.remove(connection)
            self.changed.notify_all()

    def send(self, envelope: str, kind: str, payload: object, within_s: float) -> dict[str, Any] | None:
        """One envelope; its acknowledgement, or None when none came in time."""
        with self.changed:
            self.changed.wait_for(lambda: self.open, 30)
            self.acks = [ack for ack in self.acks if ack["envelope_id"] != envelope]
            connection = self.open[-1]
        text = {"envelope_id": envelope, "type": kind, "payload": payload, "accepts_response_payload": kind == "slash_commands"}
        connection.send(json.dumps(text))
        with self.changed:
            self.changed.wait_for(lambda: self._ack(envelope), within_s)
            return self._ack(envelope)

    def _ack(self, envelope: str) -> dict[str, Any] | None:
        return next((ack for ack in self.acks if ack["envelope_id"] == envelope), None)

    def refresh(self) -> int:
        """Slack is about to close the connection; how many were opened, once the app has opened another and left this one."""
        with self.changed:
            before, connection = self.opened, self.open[-1]
        connection.send(json.dumps({"type": "disconnect", "reason": "refresh_requested"}))
        for _ in range(300):
            with self.changed:
                if self.changed.wait_for(lambda: self.opened > before and connection not in self.open, 0.1):
                    break
            with suppress(ConnectionClosed):
                connection.ping()  # as Slack does all the time; slack_sdk closes a connection only between two reads
        return self.opened
