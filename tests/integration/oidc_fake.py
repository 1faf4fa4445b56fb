"""An OpenID Connect provider of one organisation, over real HTTP: `python tests/integration/oidc_fake.py --port 9000`.

It keeps to the code flow: codes are good once, for one client, one redirect_uri and one PKCE verifier; ID tokens are signed with a
key of its own. Whoever comes to /authorize is `person`, who has signed in already.
It shares no code with denv. What a test puts into `spoil` makes it lie, in the way that the test wants to see refused.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

CLIENT, SECRET = "denv", "s3cret of:denv"
ANN = {"sub": "248289761001", "preferred_username": "ann", "email": "Ann@Example.com", "email_verified": True, "groups": ["ml-oncall"]}


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass
class Provider:
    """What it knows, and how it is made to lie."""

    url: str = ""
    person: dict[str, Any] = field(default_factory=lambda: dict(ANN))
    key: rsa.RSAPrivateKey = field(default_factory=new_key)
    kid: str = "key-1"
    codes: dict[str, dict[str, str]] = field(default_factory=dict)  # code -> what was asked with
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)  # access token -> the person
    asked: list[str] = field(default_factory=list)  # paths, as they were asked for
    spoil: dict[str, Any] = field(default_factory=dict)  # claims, and `alg`, `key`, `kid`, `status`, `userinfo`, `discovery`

    def id_token(self, nonce: str) -> str:
        """Signed; `spoil` may change any claim (None takes it out), the algorithm and the key."""
        now = int(time.time())
        thin = {name: value for name, value in self.person.items() if name != "groups"}  # those are at /userinfo
        claims = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": nonce, **thin, **self.spoil.get("claims", {})}
        claims = {name: value for name, value in claims.items() if value is not None}
        algorithm, key = self.spoil.get("alg", "RS256"), self.spoil.get("key", self.key)
        if algorithm == "HS256-by-public-key":  # the text that everybody knows, taken for a shared secret
            return hs256(claims, RSAAlgorithm.to_jwk(self.key.public_key()), self.kid)
        return jwt.encode(claims, "" if algorithm == "none" else key, algorithm, headers={"kid": self.spoil.get("kid", self.kid)})

    def description(self) -> dict[str, Any]:
        """OpenID Connect Discovery 1.0."""
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "jwks_uri": f"{self.url}/keys",
            "end_session_endpoint": f"{self.url}/logout",
            "response_types_supported": ["code"],
            "id_token_signing_alg_values_supported": ["RS256"],
            **self.spoil.get("discovery", {}),
        }

    def key_set(self) -> dict[str, Any]:
        return {"keys": [{**json.loads(RSAAlgorithm.to_jwk(self.key.public_key())), "kid": self.kid, "use": "sig", "alg": "RS256"}]}


def hs256(claims: dict[str, Any], secret: str, kid: str) -> str:
    """By hand: libraries refuse to take a public key for a secret."""
    head = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "HS256", "typ": "JWT", "kid": kid}, claims)
    ]
    signature = base64.urlsafe_b64encode(hmac.digest(secret.encode(), b".".join(head), "sha256")).rstrip(b"=")
    return b".".join([*head, signature]).decode()


class Handler(BaseHTTPRequestHandler):
    """The endpoints."""

    here: Provider

    def log_message(self, *args: Any) -> None: ...

    def answer(self, status: int, body: object = None, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.here.asked.append(path)
        if path in self.here.spoil.get("down", ()):
            return self.answer(503, {"error": "overloaded"})
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        if path == "/.well-known/openid-configuration":
            return self.answer(200, self.here.description())
        if path == "/keys":
            return self.answer(200, self.here.key_set())
        if path == "/authorize":
            return self.authorize(asked)
        if path == "/userinfo":
            person = self.here.tokens.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
            return (
                self.answer(200, {**person, **self.here.spoil.get("userinfo", {})})
                if person
                else self.answer(401, {"error": "invalid_token"})
            )
        return self.answer(200, "signed out") if path == "/logout" else self.answer(404, {})

    def authorize(self, asked: dict[str, str]) -> None:
        right = asked.get("client_id") == CLIENT and asked.get("response_type") == "code" and "openid" in asked.get("scope", "").split()
        if not right or asked.get("code_challenge_method") != "S256" or len(asked.get("code_challenge", "")) != 43:
            return self.answer(400, {"error": "invalid_request"})
        code = secrets.token_urlsafe(16)
        self.here.codes[code] = asked
        told = self.here.spoil.get("told", {"code": code, "iss": self.here.url})
        return self.answer(302, None, {"Location": f"{asked['redirect_uri']}?{urlencode({'state': asked['state'], **told})}"})

    def do_POST(self) -> None:
        self.here.asked.append(self.path)
        form = {name: values[0] for name, values in parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()).items()}
        if self.path in self.here.spoil.get("down", ()):
            return self.answer(503, {"error": "overloaded"})
        user, _, password = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode().partition(":")
        if (unquote_plus(user), unquote_plus(password)) != (CLIENT, SECRET) and form.get("client_secret") != SECRET:
            return self.answer(401, {"error": "invalid_client"})
        asked = self.here.codes.pop(form.get("code", ""), {})
        digest = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest()).rstrip(b"=").decode()
        if form.get("grant_type") != "authorization_code" or (asked.get("code_challenge"), asked.get("redirect_uri")) != (
            digest,
            form.get("redirect_uri"),
        ):
            return self.answer(400, {"error": "invalid_grant"})
        access = secrets.token_urlsafe(16)
        self.here.tokens[access] = dict(self.here.person)
        token = self.here.spoil.get("id_token") or self.here.id_token(asked.get("nonce", ""))
        return self.answer(200, {"access_token": access, "token_type": "Bearer", "id_token": token}, {"Cache-Control": "no-store"})


@contextmanager
def provider_running(port: int = 0) -> Iterator[Provider]:
    """One that answers on loopback until the end of the block."""
    here = Provider()
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Here", (Handler,), {"here": here}))
    here.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield here
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--groups", default="ml-oncall", help="of the one person who signs in, with commas")
    options = parser.parse_args()
    with provider_running(options.port) as here:
        here.person["groups"] = options.groups.split(",")
        here.kid = secrets.token_hex(8)  # the key is another one at each start
        print(f"DENV_OIDC_ISSUER={here.url} DENV_OIDC_CLIENT_ID={CLIENT} DENV_OIDC_CLIENT_SECRET='{SECRET}'", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
