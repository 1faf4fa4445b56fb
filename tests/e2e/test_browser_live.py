"""In a real browser: after the swap of what has changed, a page is what loading it anew gives, and keeps what is its reader's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django.live_server_helper import LiveServer

from tests.e2e.browser import Browser
from tests.integration import page_samples as samples

PAGES = ("/", "/stages/ds-flash/prod-us", "/fleets", "/releases", "/events", "/rollouts/ro-ds-flash-prod-us")
_LIVING = """
const main = document.getElementById('main').cloneNode(true);
for (const el of main.querySelectorAll('[data-keep], input[name=csrfmiddlewaretoken], progress')) el.remove();
main.normalize();
return main.innerHTML.replace(/\\s+/g, ' ').replace(/As of [\\d:]+|[\\d.:]+ (s|min|h) of/g, '').trim();
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


def _differs(browser: Browser, before: str) -> bool:
    return bool(browser.run(_LIVING) != before)


def test_a_stale_page_that_swaps_is_the_fresh_page(chromium: Browser, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    client.force_login(User.objects.create_user("oncall-a"))
    chromium.width(1440)
    chromium.sign_in(live_server.url, client.cookies["sessionid"].value)
    for path in PAGES:
        samples.patch_all(monkeypatch.setattr)
        chromium.driver.get(live_server.url + path)
        chromium.run("document.querySelector('[data-live]').click()")  # nothing but the swap that is looked at
        stale = chromium.run(_LIVING)
        samples.patch_later(monkeypatch.setattr)
        chromium.run("document.querySelector('[data-live]').click()")
        chromium.wait(partial(_differs, chromium, stale))
        chromium.run("document.querySelector('[data-live]').click()")
        swapped = chromium.run(_LIVING)
        chromium.driver.get(live_server.url + path)
        assert swapped == chromium.run(_LIVING), path
