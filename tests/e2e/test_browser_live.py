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

PAGES = ("/", "/stages/ds-flash/prod-us", "/fleets", "/releases", "/releases/ds-flash/8", "/events", "/rollouts/ro-ds-flash-prod-us")
# All that lives in a page, its parts and the count beside "Overview" too; but for what the clock alone changes, and what a script draws.
_LIVING = """
const main = document.getElementById('main').cloneNode(true);
for (const el of main.querySelectorAll('[data-keep]:not([hx-get]), #sg-ratio, input[name=csrfmiddlewaretoken], progress')) el.remove();
for (const name of ['settling', 'swapping', 'added']) {
  for (const el of main.querySelectorAll(`.htmx-${name}`)) el.classList.remove(`htmx-${name}`);
}
for (const el of main.querySelectorAll('[class=""]')) el.removeAttribute('class');
main.normalize();
const shown = document.getElementById('attention').textContent + main.innerHTML;
return shown.replace(/\\s+/g, ' ').replace(/As of [\\d:]+|[\\d.:]+ (s|min|h) of/g, '').trim();
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


def _quiet(browser: Browser) -> bool:
    """Whether nothing is on its way: every part has come, and so has the number beside "Overview"."""
    return not browser.run("return document.querySelector('.htmx-request, [aria-busy=true]')") and bool(
        browser.run("return document.querySelector('#attention > *')")
    )


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
        chromium.wait(partial(_quiet, chromium))
        stale = chromium.run(_LIVING)
        samples.patch_later(monkeypatch.setattr)
        chromium.run("document.querySelector('[data-live]').click()")
        chromium.run("document.body.dispatchEvent(new CustomEvent('denv:event'))")  # as an event of the stream does
        chromium.wait(partial(_differs, chromium, stale))
        chromium.run("document.querySelector('[data-live]').click()")
        chromium.wait(partial(_quiet, chromium))
        swapped = chromium.run(_LIVING)
        chromium.driver.get(live_server.url + path)
        chromium.run("document.querySelector('[data-live]').click()")
        chromium.wait(partial(_quiet, chromium))
        assert swapped == chromium.run(_LIVING), path
    chromium.driver.get("about:blank")


_STREAMS = """
window.streams = [];
window.EventSource = class extends EventTarget {
  static CLOSED = 2;
  constructor(url) { super(); this.url = url; this.readyState = 1; window.streams.push(this); queueMicrotask(() => this.onopen?.()); }
  close() { this.readyState = 2; }
  say(event) { this.dispatchEvent(new MessageEvent('journal', {data: JSON.stringify(event)})); }
};
"""


def test_a_tab_has_one_stream_whatever_parts_it_has_and_none_while_it_is_hidden(
    chromium: Browser, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples.patch_all(monkeypatch.setattr)
    client = Client()
    client.force_login(User.objects.create_user("oncall-a"))
    chromium.sign_in(live_server.url, client.cookies["sessionid"].value)
    script = chromium.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _STREAMS})
    open_now = "return window.streams.filter((stream) => stream.readyState === 1).map((stream) => stream.url)"
    try:
        chromium.driver.get(f"{live_server.url}/stages/ds-flash/prod-us")
        chromium.wait(lambda: chromium.run("return document.querySelector('.unit .flow')"))
        assert chromium.run(open_now) == ["/api/v1/stream"]
        chromium.run("window.looks = 0; document.body.addEventListener('denv:refresh', () => { window.looks += 1 })")
        burst = "for (let n = 0; n < 50; n++) window.streams[0].say({stage: 'm/s', sentence: 'a', level: n < 49 ? 'info' : 'bad'});"
        said = chromium.run(f"{burst} return document.getElementById('announce').textContent")
        assert said == "50 events, the last: m/s: a", "what is bad is said at once, and the rest with it"
        chromium.wait(lambda: chromium.run("return window.looks") > 0)
        assert chromium.run("return window.looks") < 25, "fifty events are one reason to look; the others are the clock's"
        hide = "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});"
        hide += "document.dispatchEvent(new Event('visibilitychange'))"
        chromium.run(hide, True)
        assert chromium.run(open_now) == []
        chromium.run(hide, False)
        assert chromium.run(open_now) == ["/api/v1/stream"]
        chromium.run("window.streams.at(-1).readyState = 2")  # refused for good: it comes back by itself
        chromium.wait(lambda: chromium.run(open_now), 30)
    finally:
        chromium.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
        chromium.driver.get("about:blank")
