"""What DENV_HTTPS_ONLY makes of the settings, which are read once when a program starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

COOKIES = ["SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SESSION_COOKIE_HTTPONLY"]
ASKED = [*COOKIES, "SECURE_HSTS_SECONDS", "SECURE_PROXY_SSL_HEADER", "X_FRAME_OPTIONS"]
SAY = f"import json; from denvweb import settings as s; print(json.dumps([getattr(s, name) for name in {ASKED}]))"


def start(**env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DENV_")}
    return subprocess.run([sys.executable, "-c", SAY], env=clean | env, capture_output=True, text=True, timeout=60, check=False)


def test_cookies_stay_on_https_and_browsers_are_told_to() -> None:
    told = json.loads(start(DENV_HTTPS_ONLY="1", DENV_SECRET_KEY="k" * 50).stdout)
    assert told == [True, True, True, 31_536_000, ["HTTP_X_FORWARDED_PROTO", "https"], "DENY"]


def test_a_key_that_everybody_knows_stops_denv_from_starting_for_others() -> None:
    for key in ({}, {"DENV_SECRET_KEY": ""}):
        refused = start(DENV_HTTPS_ONLY="1", **key)
        assert refused.returncode and "DENV_HTTPS_ONLY is set and DENV_SECRET_KEY is not" in refused.stderr
    assert start().returncode == 0, "on one's own machine"
