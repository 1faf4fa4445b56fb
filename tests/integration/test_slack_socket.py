"""Socket Mode: the same requests over a connection that denv opens, with a Slack on a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from typing import Any

import pytest
from django.contrib.auth.models import User
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from denvweb.core.errors import UnavailableError
from denvweb.models import Grant
from frontend.models import SlackUser
from frontend.slack.app import slack_app_set
from frontend.slack.socket import connect
from metrics.models import Event

pytestmark = pytest.mark.django_db(transaction=True)

TEAM, ANN = "T0000000001", "U0000000ANN"


@dataclass
class Socket:
    """Slack's end: envelopes go out, acknowledgements come in."""

    out: Queue[str | None] = field(default_factory=Queue)
    acks: Queue[dict[str, Any]] = field(default_factory=Queue)
    bearers: list[str] = field(default_factory=list)

    def send(self, envelope: str, kind: str, payload: dict[str, Any]) -> None:
        self.out.put(json.dumps({"envelope_id": envelope, "type": kind, "payload": payload, "accepts_response_payload": True}))

    def listen(self, connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            for text in connection:
                if str(text).startswith("{"):
                    self.acks.put(json.loads(text))

    def talk(self, connection: ServerConnection) -> None:
        connection.send(json.dumps({"type": "hello", "num_connections": 1}))
        reader = threading.Thread(target=self.listen, args=(connection,))
        reader.start()
        while (text := self.out.get()) is not None:
            connection.send(text)
        connection.close()
        reader.join()


@pytest.fixture
def socket(settings: Any) -> Iterator[Socket]:
    """apps.connections.open over HTTP, and the socket that it names."""
    here = Socket()
    with serve(here.talk, "127.0.0.1", 0) as server:
        port = server.socket.getsockname()[1]

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                here.bearers.append(self.headers["Authorization"])
                data = json.dumps({"ok": True, "url": f"ws://127.0.0.1:{port}/link"}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None: ...

        http = HTTPServer(("127.0.0.1", 0), Handler)
        threads = [threading.Thread(target=server.serve_forever), threading.Thread(target=http.serve_forever, args=(0.02,))]
        for thread in threads:
            thread.start()
        settings.SLACK_API_URL = f"http://127.0.0.1:{http.server_port}/api/"
        yield here
        here.out.put(None)
        http.shutdown()
        server.shutdown()
        for thread in threads:
            thread.join()
        http.server_close()


def test_a_command_is_done_once_and_acknowledged_with_its_answer(socket: Socket) -> None:
    slack_app_set(team=TEAM, bot_token="xoxb-1", signing_secret="", app_token="xapp-1", actor="root", via="api")
    user = User.objects.create_user("ann")
    SlackUser.objects.create(team=TEAM, user=ANN, account=user)
    Grant.objects.create(user=user, model="*", role="admin")
    client = connect()
    try:
        form = {"team_id": TEAM, "user_id": ANN, "user_name": "ann", "command": "/denv", "text": "rollback no/such"}
        socket.send("e-1", "slash_commands", form)
        ack = socket.acks.get(timeout=20)
        assert ack["envelope_id"] == "e-1" and ack["payload"]["text"] == "Not done: There is no stage no/such."
        socket.send("e-1", "slash_commands", form)
        socket.send("e-2", "slash_commands", form | {"team_id": "T-other"})
        assert socket.acks.get(timeout=20) == {"envelope_id": "e-2"}, "e-1 was not done again, e-2 is nobody of ours"
        assert [event.actor for event in Event.objects.filter(kind="change.refused")] == ["ann"]
        assert socket.bearers == ["Bearer xapp-1"]
    finally:
        client.close()


def test_without_an_app_token_it_says_so() -> None:
    slack_app_set(team=TEAM, bot_token="xoxb-1", signing_secret="s", actor="root", via="api")
    with pytest.raises(UnavailableError, match="xapp-"):
        connect()
