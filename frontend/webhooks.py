"""Notices to webhooks, signed as the Standard Webhooks specification (1.0) has it, so that its libraries can check them.

The address is somebody's input and the request leaves from inside of the network, so: https only, the name is resolved once
and the connection goes to an address that was looked at, no redirects, five seconds and 64 kB.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import urlsplit

from denvweb.core import wire
from denvweb.secrets import unseal
from frontend.sending import DeliveryError, retry_after_s
from metrics.domain.views import EventView
from metrics.services import Notice

TIMEOUT_S = 5.0
BODY_MAX_BYTES = 64 * 1024  # of the answer, only the head is read

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# Where clouds keep credentials; refused even where one's own network is allowed. All of link-local is, too.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "168.63.129.16", "100.100.100.200", "192.0.0.192"))
)
_TRANSLATED = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")))  # hold an IPv4 address

_PRIVATE = "is not in the public internet, which this webhook is not allowed"


def webhook_send(notice: Notice) -> None:
    """Send one notice; DeliveryError when the other end did not say 2xx."""
    body = _body(notice.event)
    headers = sign(unseal(notice.secret), message_id=f"denv-{notice.event.seq}", at=datetime.now(UTC), body=body)
    parts = urlsplit(notice.address)
    host, port = parts.hostname or "", parts.port or 443
    address = resolve(host, port, allow_private=notice.allow_private)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    status, retry = _post(host, port, address, path, body, headers | {"Content-Type": "application/json", "User-Agent": "denv-webhook/1"})
    if not 200 <= status < 300:
        moved = ", and redirects are not followed" if 300 <= status < 400 else ""
        raise DeliveryError(
            f"{host} answered {status}{moved}", retry_after_s=retry_after_s(retry, now=datetime.now(UTC)), hopeless=status == 410
        )


def _body(event: EventView) -> bytes:
    message = {"type": event.kind, "timestamp": event.at, "data": wire.to_plain(event)}
    body = wire.encode(message)
    if len(body) > BODY_MAX_BYTES:
        message["data"]["evidence"] = {"left_out": "too long for a webhook; see the event over REST"}
        body = wire.encode(message)
    return body


def sign(key: str, *, message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """The three headers; `key` is `whsec_` and base64."""
    stamp = str(int(at.timestamp()))
    signed = b".".join((message_id.encode(), stamp.encode(), body))
    digest = hmac.digest(base64.b64decode(key.removeprefix("whsec_")), signed, hashlib.sha256)
    return {"webhook-id": message_id, "webhook-timestamp": stamp, "webhook-signature": f"v1,{base64.b64encode(digest).decode()}"}


def refusal_of(address: Address, *, allow_private: bool) -> str:
    """Why nothing may be sent there; empty when it may."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return refusal_of(address.ipv4_mapped, allow_private=allow_private)
        if any(address in network for network in _TRANSLATED):
            return "is an IPv4 address in disguise"
        if address.is_site_local and not allow_private:  # which `is_global` takes for a part of the internet
            return _PRIVATE
    if address in _METADATA or address.is_link_local:
        return "is where machines of a cloud find their credentials"
    if address.is_multicast or address.is_unspecified or address.is_reserved:
        return "is no address of one machine"
    return "" if address.is_global or allow_private else _PRIVATE


def resolve(host: str, port: int, *, allow_private: bool) -> Address:
    """The one address to connect to; refused when any address of the name is."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DeliveryError(f"{host} has no address: {error}") from error
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    for address in addresses:
        if refusal := refusal_of(address, allow_private=allow_private):
            raise DeliveryError(f"{host} is {address}, which {refusal}", hopeless=True)
    return addresses[0]


class _Pinned(http.client.HTTPSConnection):
    """Connects to an address that was looked at, and expects the name's certificate there."""

    def __init__(self, host: str, port: int, address: Address) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self.address = address
        self.tls = ssl.create_default_context()
        self.wire: socket.socket | None = None
        self.late = False

    def connect(self) -> None:
        plain = socket.create_connection((str(self.address), self.port), timeout=TIMEOUT_S)
        try:
            # The handshake waits until the socket can be cut off: it too may be dripped.
            self.sock = self.wire = self.tls.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)
            if self.late:
                raise TimeoutError("no time left after connecting")
            self.wire.do_handshake()
        except OSError:
            plain.close()
            raise

    def cut(self) -> None:
        """End it from another thread: the time limit of a socket is one for each read, and somebody may send a byte a second."""
        self.late = True
        if self.wire is not None:
            with suppress(OSError):  # it may have ended by itself just now
                socket.socket.shutdown(self.wire, socket.SHUT_RDWR)  # the TLS socket's own would take the reader's state away


def _post(host: str, port: int, address: Address, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str | None]:
    """Status and Retry-After."""
    connection = _Pinned(host, port, address)
    late = threading.Timer(TIMEOUT_S, connection.cut)
    late.daemon = True
    late.start()
    try:
        connection.request("POST", path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers.get("Retry-After")
    except (OSError, http.client.HTTPException) as error:
        raise DeliveryError(f"{host} did not answer in {TIMEOUT_S:g} s: {type(error).__name__} {error}".strip()) from error
    finally:
        late.cancel()
        connection.close()
