"""Webhooks: signed by the specification, and not to be turned against the network that they leave from."""

from __future__ import annotations

import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from django.utils import timezone

from denvweb.secrets import seal
from frontend import webhooks
from frontend.sending import DeliveryError, retry_after_s
from frontend.webhooks import sign, webhook_send
from metrics.domain.views import EventView
from metrics.services import Notice

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_signature_is_that_of_the_specification() -> None:
    """The example of the Standard Webhooks specification."""
    headers = sign(KEY, message_id="msg_p5jXN8AQM9LWM0D4loKWxJek", at=datetime.fromtimestamp(1614265330, UTC), body=b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_retry_after_is_seconds_or_a_date() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert retry_after_s("30", now=now) == 30
    assert retry_after_s("Thu, 01 Jan 2026 00:01:00 GMT", now=now) == 60
    assert retry_after_s("soon", now=now) is None and retry_after_s(None, now=now) is None


@dataclass
class Receiver:
    """An https server that answers as it is told."""

    server: HTTPServer
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    drip: bool = False
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.server.server_port}/hook?a=1"


def certificate(folder: Path) -> Path:
    """One for localhost, signed by itself."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, timezone.now() - timedelta(days=1), timezone.now() + timedelta(days=1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    path = folder / "localhost.pem"
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    pem = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with suppress(OSError):  # the caller has gone
                self.answer()

        def answer(self) -> None:
            told.got.append((self.path, dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            while told.drip:
                self.wfile.write(b"H")
                time.sleep(0.05)
            self.send_response(told.status)
            for name, value in told.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    server = HTTPServer(("localhost", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    told = Receiver(server)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield told
    server.shutdown()
    thread.join()
    server.server_close()


def notice(receiver: Receiver, *, allow_private: bool = True, evidence: dict[str, Any] | None = None) -> Notice:
    event = EventView(7, timezone.now(), "rollout.held", "warn", "m/s is held", "system", "system", stage="m/s", evidence=evidence or {})
    return Notice(1, 1, event, "ch-1", "webhook", receiver.url, seal(KEY), allow_private)


def test_a_notice_arrives_signed(receiver: Receiver) -> None:
    webhook_send(notice(receiver))
    path, headers, body = receiver.got[0]
    at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
    assert path == "/hook?a=1" and abs((timezone.now() - at).total_seconds()) < 5
    assert headers["webhook-id"] == "denv-7", "the same however often it is sent"
    assert headers["webhook-signature"] == sign(KEY, message_id="denv-7", at=at, body=body)["webhook-signature"]
    assert json.loads(body)["type"] == "rollout.held" and json.loads(body)["data"]["sentence"] == "m/s is held"


def test_a_large_one_leaves_its_evidence_out(receiver: Receiver) -> None:
    webhook_send(notice(receiver, evidence={"log": "x" * 100_000}))
    assert len(receiver.got[0][2]) < webhooks.BODY_MAX_BYTES


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    receiver.status, receiver.headers = 302, {"Location": "https://localhost/elsewhere"}
    with pytest.raises(DeliveryError, match="302, and redirects are not followed"):
        webhook_send(notice(receiver))
    assert len(receiver.got) == 1


def test_a_busy_receiver_says_when_to_come_back_and_a_gone_one_is_left_alone(receiver: Receiver) -> None:
    receiver.status, receiver.headers = 429, {"Retry-After": "17"}
    with pytest.raises(DeliveryError) as busy:
        webhook_send(notice(receiver))
    assert (busy.value.retry_after_s, busy.value.hopeless) == (17, False)
    receiver.status = 410
    with pytest.raises(DeliveryError) as gone:
        webhook_send(notice(receiver))
    assert gone.value.hopeless


def test_nothing_is_sent_to_an_address_that_is_not_allowed(receiver: Receiver) -> None:
    with pytest.raises(DeliveryError, match="not in the public internet"):
        webhook_send(notice(receiver, allow_private=False))
    assert not receiver.got


def test_a_receiver_that_drips_is_cut_off(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.4)
    receiver.drip = True
    began = time.monotonic()
    with pytest.raises(DeliveryError, match="did not answer"):
        webhook_send(notice(receiver))
    receiver.drip = False
    assert time.monotonic() - began < 3


def test_time_may_run_out_while_connecting_and_in_the_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a limit of its own; what is left for the answer is what both left of the whole."""
    real, here = socket.create_connection, ipaddress.ip_address("127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes connections, and says nothing
        late = webhooks._Pinned("localhost", mute.getsockname()[1], here)

        def connect(*args: Any, **more: Any) -> socket.socket:
            late.cut()
            return real(*args, **more)

        monkeypatch.setattr(socket, "create_connection", connect)
        with pytest.raises(TimeoutError):
            late.connect()
        late.close()
        monkeypatch.setattr(socket, "create_connection", real)
        monkeypatch.setattr(webhooks, "TIMEOUT_S", 60.0)
        waiting = webhooks._Pinned("localhost", mute.getsockname()[1], here)

        def cut_off() -> None:
            until(lambda: waiting.wire is not None)
            waiting.cut()

        cut = threading.Thread(target=cut_off)
        cut.start()
        began = time.monotonic()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            waiting.connect()
        cut.join()
        waiting.close()
    assert time.monotonic() - began < 30


def until(holds: Callable[[], bool]) -> None:
    """Wait for it, at most twenty seconds."""
    end = time.monotonic() + 20
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)


def test_a_certificate_of_somebody_else_is_refused(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(DeliveryError, match="did not answer"):
        webhook_send(notice(receiver))
