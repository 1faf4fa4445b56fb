"""`make pictures`: every page as it looks, light and dark, on a wide screen and on a telephone, into docs/images/pages.

Run by hand and looked at; `ONLY=stage,events` takes some of them; what must hold of pages by itself is in test_browser_pages.py.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django.live_server_helper import LiveServer

from denvweb.oidc import OidcConfig
from fleets.domain.allowance import Allowance
from fleets.services import key_create
from frontend.accounts.roles import grant_give
from frontend.accounts.tokens import token_make
from metrics.services import channel_create
from releases.domain.freeze_reader import FreezeRequest
from releases.services.freezes import freeze_window_create
from tests.e2e.browser import Browser
from tests.e2e.picture_states import STATES
from tests.e2e.test_browser_pages import PAGES
from tests.integration import page_samples as samples
from tests.integration.fleets_world import World

FOLDER = Path(__file__).parents[2] / "docs" / "images" / "pages"
_LOOKS = [(width, theme) for width in (1440, 390) for theme in ("light", "dark")]
_SCALE = {1440: 0.6, 390: 0.8}  # all pictures together stay under 4 MB
_QUALITY = 50
_ONLY = {name for name in os.environ.get("ONLY", "").split(",") if name}


def shot(browser: Browser, width: int) -> bytes:
    """The page from top to bottom as WebP; a very long one to where it only goes on."""
    metrics = browser.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})
    height = min(4200, round(metrics["cssContentSize"]["height"]))
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": _SCALE[width]}
    found = browser.driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "webp", "quality": _QUALITY, "captureBeyondViewport": True, "clip": clip}
    )
    return base64.b64decode(found["data"])


def open_form(browser: Browser) -> None:
    """The editor as it is while somebody writes: text and form, and what the dry run says."""
    browser.find("#ed-form summary").click()
    browser.find("#yaml").send_keys("\n")
    browser.wait(lambda: "It fits." in browser.find("#dry-run").text)
    browser.wait(lambda: browser.run("return document.querySelectorAll('[data-path]').length"))


def open_dialog(browser: Browser) -> None:
    """What a rollback would do, before it is confirmed."""
    browser.find("#rollback-open").click()
    browser.wait(lambda: browser.find("#dlg-rollback").is_displayed())


def take(browser: Browser, name: str, looks: list[tuple[int, str]]) -> int:
    """Pictures of what the browser shows; how many bytes they are."""
    total_bytes = 0
    for width, theme in looks:
        browser.width(width)
        browser.theme(theme)
        browser.driver.execute_async_script("setTimeout(arguments[0], 350)")  # charts take their new width after a pause
        picture = shot(browser, width)
        total_bytes += len(picture)
        (FOLDER / f"{name}-{width}-{theme}.webp").write_bytes(picture)
    return total_bytes


# What is done on a page before its picture is taken; a page under a second name is there twice.
_FIRST: dict[str, Callable[[Browser], None]] = {"new-release": open_form, "stage-roll-back": open_dialog}
_MORE = {"new-release": "/releases/new?from=ds-flash@8", "stage-roll-back": PAGES["stage"], "login": "/login"}


def things(root: User) -> None:
    """Something to see on the pages of people."""
    User.objects.create_user("deployer-b")
    token_make(user=root, name="ci", days=90, via="ui")
    grant_give(name="deployer-b", model="*", role="deployer", by=root, via="ui")
    channel_create(kind="webhook", name="pager", address="https://hooks.example.com/denv", actor="oncall-a", via="ui")
    asked = FreezeRequest(zone="Europe/Berlin", reason="nobody is in", days=("sat", "sun"), start="00:00", end="23:59")
    freeze_window_create(asked=asked, actor="oncall-a", via="ui")
    World(domains=1, nodes=1).route({})
    for client, allowance in {"acme": Allowance(600, 1_000_000, 64), "search-team": Allowance()}.items():
        key_create(stage="ds-flash/prod-us", client=client, allowance=allowance, actor="oncall-a", via="ui")


def test_pictures(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """All of them; says how large they are together."""
    samples.patch_all(monkeypatch.setattr)
    settings.OIDC = OidcConfig("https://login.example.com", "denv", "", "Example", "openid", "groups", {}, (), False, 3600)
    browser, client = Browser(), Client(headers={"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/128.0"})
    root = User.objects.create_superuser("oncall-a", password="a long password")
    things(root)
    client.post("/login", {"username": "oncall-a", "password": "a long password"})
    FOLDER.mkdir(parents=True, exist_ok=True)
    total_bytes = 0
    try:
        browser.sign_in(live_server.url, client.cookies["sessionid"].value)
        for name, path in ((name, path) for name, path in {**PAGES, **_MORE}.items() if not _ONLY or name in _ONLY):
            if name == "login":
                browser.driver.delete_all_cookies()
            browser.driver.get(live_server.url + path)
            if name.startswith("stage"):
                browser.wait(lambda: browser.run("return document.querySelectorAll('.plot .main-svg').length"))
            browser.run("document.querySelector('[data-live]')?.click()")
            if name in _FIRST:
                _FIRST[name](browser)
            total_bytes += take(browser, name, _LOOKS)
        client.post("/login", {"username": "oncall-a", "password": "a long password"})
        browser.sign_in(live_server.url, client.cookies["sessionid"].value)
        for name, state in ((name, state) for name, state in STATES.items() if not _ONLY or name in _ONLY):
            default = settings.DEFAULT_ROLE
            with monkeypatch.context() as patch:
                state(browser, live_server.url, patch, settings)
                browser.run("document.querySelector('[data-live]')?.click()")
                total_bytes += take(browser, name, [(1440, "light"), (390, "dark")])
            settings.DEFAULT_ROLE = default
            User.objects.filter(username="oncall-a").update(is_superuser=True)
            browser.offline(False)
            browser.blocked()
            browser.media("", "")
    finally:
        browser.close()
    print(f"{total_bytes / 1e6:.2f} MB")
    assert total_bytes < 4_000_000
