"""The pages in a real browser: nothing for axe to find, nothing that scrolls sideways, and what scripts promise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django.live_server_helper import LiveServer
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.e2e.browser import Browser
from tests.integration import page_samples as samples

STAGE = "/stages/ds-flash/prod-us?range=60"
PAGES = {
    "overview": "/",
    "stage": STAGE,
    "what-if": f"{STAGE.partition('?')[0]}/what-if",
    "scale": f"{STAGE.partition('?')[0]}/scale",
    "stage-back": "/stages/llama-70b/prod-us",
    "logs": "/stages/ds-flash/prod-us/logs?pool=decode",
    "rollout": "/rollouts/ro-ds-flash-prod-us",
    "keys": "/stages/ds-flash/prod-us/keys",
    "stage-broken": "/stages/llama-70b/staging",
    "fleets": "/fleets",
    "releases": "/releases",
    "release": "/releases/ds-flash/8",
    "new-release": "/releases/new",
    "events": "/events",
    "recipes": "/recipes",
    "access": "/access",
    "settings": "/settings",
    "missing": "/nowhere",
}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium: Browser, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """Signed in as oncall-a, at 1440 pixels. It asks nothing any more when the database is emptied."""
    samples.patch_all(monkeypatch.setattr)
    client = Client()
    client.force_login(User.objects.create_user("oncall-a"))
    chromium.width(1440)
    chromium.sign_in(live_server.url, client.cookies["sessionid"].value)
    chromium.complaints()
    yield chromium
    chromium.driver.get("about:blank")


def check_looks(browser: Browser) -> None:
    browser.run("document.querySelector('[data-live]')?.click()")  # a look at the figures in between would only take time
    for width in (1440, 390):
        browser.width(width)
        browser.theme("light")
        assert browser.violations() == [], width
        browser.theme("dark")  # which changes colours only
        assert browser.violations("color-contrast") == [], width
        assert browser.too_wide() == "", width
    browser.width(320)  # the narrowest that must do
    browser.wait(lambda: not browser.too_wide())  # charts take their new width after a pause


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_and_nothing_scrolls_sideways(browser: Browser, live_server: LiveServer, name: str) -> None:
    browser.driver.get(live_server.url + PAGES[name])
    if name.startswith(("stage", "what-if")):  # pages with charts
        browser.wait(lambda: browser.run("return document.querySelectorAll('.plot .main-svg').length"))
    check_looks(browser)
    expected = {"missing": ["404"], "logs": ["/logs?pool="]}.get(name, [])  # no engine of this evening is there to write a log
    assert [line for line in browser.complaints() if not any(word in line for word in expected)] == []


def test_the_login_is_as_good(chromium: Browser, live_server: LiveServer, transactional_db: None) -> None:
    chromium.driver.get(f"{live_server.url}/login")
    chromium.driver.delete_all_cookies()
    chromium.driver.get(f"{live_server.url}/login")
    check_looks(chromium)


def test_two_enters_roll_back(browser: Browser, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("releases.services.rollouts.rollback", lambda **what: asked.append(what))
    browser.driver.get(live_server.url + STAGE)
    browser.run("document.getElementById('rollback-open').focus()")
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    browser.wait(lambda: browser.find("#dlg-rollback").is_displayed())
    dialog = browser.find("#dlg-rollback")
    assert "Release 7 is warm on unit 1: all traffic in about 2 s" in dialog.text
    assert "then\nAll 2 units are back after about 20 s." in dialog.text
    assert browser.driver.switch_to.active_element.text == "Roll back to release 7"
    assert browser.violations() == []
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    browser.wait(lambda: browser.find(".messages").text)
    assert "Rolling back" in browser.find(".messages").text
    assert asked == [{"stage": "ds-flash/prod-us", "to": None, "actor": "oncall-a", "via": "ui", "reason": ""}]


def test_on_call_with_a_telephone_in_three_taps(browser: Browser, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("releases.services.rollouts.rollback", lambda **what: asked.append(what))
    browser.width(390)
    browser.driver.get(live_server.url)
    assert browser.find("h1").text.startswith("llama-70b/prod-us breached and is rolling back.")
    assert browser.run("return document.activeElement === document.body")
    ActionChains(browser.driver).send_keys(Keys.TAB).perform()
    assert browser.driver.switch_to.active_element.text == "Skip to content"
    for tap in ("#move-ds-flashprod-us .what a", "#rollback-open", "#dlg-rollback .btn.danger"):
        browser.wait(partial(browser.driver.find_elements, "css selector", tap))
        seen = (
            "const box = document.querySelector(arguments[0]).getBoundingClientRect(); return box.height >= 20 && box.bottom < innerHeight"
        )
        assert browser.run(seen, tap), f"{tap} is to be seen without scrolling"
        browser.find(tap).click()
    browser.wait(lambda: browser.find(".messages").text)
    assert [what["stage"] for what in asked] == ["ds-flash/prod-us"]


def test_escape_leaves_everything_as_it_is(browser: Browser, live_server: LiveServer) -> None:
    browser.driver.get(live_server.url + STAGE)
    browser.find("#rollback-open").click()
    browser.wait(lambda: browser.find("#dlg-rollback").is_displayed())
    ActionChains(browser.driver).send_keys(Keys.ESCAPE).perform()
    assert not browser.find("#dlg-rollback").is_displayed()
    assert browser.run("return document.activeElement.id") == "rollback-open"
    ActionChains(browser.driver).send_keys("/").perform()  # from any page to the box where a stage is named
    browser.wait(lambda: browser.run("return document.activeElement.id") == "jump")
    browser.driver.switch_to.active_element.send_keys("kimi-k2/prod-us", Keys.ENTER)
    browser.wait(lambda: "/stages/kimi-k2/prod-us" in browser.driver.current_url)


def refresh(browser: Browser) -> None:
    """Have the page look again, and wait until it has."""
    browser.run("window.swapped = false; document.addEventListener('denv:swapped', () => { window.swapped = true }, {once: true})")
    browser.run("document.body.dispatchEvent(new CustomEvent('denv:refresh'))")
    browser.wait(lambda: browser.run("return window.swapped"))


def test_a_refresh_leaves_dialog_text_focus_and_details_alone(
    browser: Browser, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.driver.get(live_server.url + STAGE)
    browser.wait(lambda: browser.run("return document.querySelectorAll('.plot .main-svg').length"))
    browser.find("#chart-ttft summary").click()
    browser.run("document.getElementById('rollback-open').click()")
    browser.find("#dlg-rollback input[name=reason]").send_keys("ITL worse")
    monkeypatch.setattr(
        "frontend.pages.stage.stage_view", lambda stage: samples.stage(stage, "held", 7, ro=samples.held_stage().rollout, back_to=7)
    )
    refresh(browser)
    assert "Waits for approval" in browser.find("#sg-head").text
    assert browser.find("#dlg-rollback").is_displayed()
    assert browser.run("return document.activeElement.name") == "reason"
    assert browser.run("return document.activeElement.value") == "ITL worse"
    assert browser.run("return document.querySelector('#chart-ttft details').open")
    assert browser.run("return document.querySelectorAll('#chart-ttft table tbody tr').length") == 120
    assert browser.run("return document.querySelectorAll('.plot .main-svg').length")


def test_live_can_be_paused(browser: Browser, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    browser.driver.get(f"{live_server.url}/fleets")
    button = browser.find("[data-live]")
    button.click()
    assert button.text.startswith("Paused at ")
    assert button.get_attribute("aria-pressed") == "true"
    browser.run("window.asked = 0; document.addEventListener('htmx:beforeRequest', () => { window.asked += 1 })")
    browser.driver.execute_async_script("setTimeout(arguments[0], 2300)")  # longer than one look takes to come
    assert browser.run("return window.asked") == 0
    button.click()
    browser.wait(lambda: browser.run("return window.asked") > 0)
    assert button.text == "Live"


def test_a_page_without_an_answer_says_so_and_recovers(browser: Browser, live_server: LiveServer) -> None:
    browser.driver.get(f"{live_server.url}/fleets")
    browser.offline(True)
    try:
        browser.wait(lambda: browser.find("#offline").is_displayed(), 15)
        assert "No answer from denv since" in browser.find("#offline").text
        assert "stale" in str(browser.find("#main").get_attribute("class"))
    finally:
        browser.offline(False)
    browser.wait(lambda: not browser.find("#offline").is_displayed())


def test_the_theme_is_kept_and_redraws_the_charts(browser: Browser, live_server: LiveServer) -> None:
    browser.driver.get(live_server.url + STAGE)
    stroke = "return getComputedStyle(document.querySelector('#plot-ttft .scatterlayer .js-line')).stroke"
    browser.wait(lambda: browser.run("return document.querySelector('#plot-ttft .scatterlayer .js-line')"))
    light = browser.run(stroke)
    browser.find("[data-theme-cycle]").click()
    browser.wait(lambda: browser.run(stroke) != light)
    assert browser.find("[data-theme-cycle]").get_attribute("aria-label") == "Colour theme: dark"
    browser.driver.get(f"{live_server.url}/fleets")
    assert browser.run("return document.documentElement.dataset.theme") == "dark"


def test_the_editor_shows_the_dry_run_at_a_pause_in_typing(browser: Browser, live_server: LiveServer) -> None:
    browser.driver.get(f"{live_server.url}/releases/new")
    browser.find("#yaml").send_keys("# one line more\n")
    browser.wait(lambda: "It fits." in browser.find("#dry-run").text)
    assert "Plan for ds-flash/prod-us" in browser.find("#dry-run").text
    assert browser.find("button[value=release]").text == "Release 9"
    assert browser.run("return document.querySelectorAll('[data-numbers] li').length") == browser.run(
        "return document.getElementById('yaml').value.split('\\n').length"
    )
    assert browser.violations() == []


def type_text(browser: Browser, text: str) -> None:
    browser.run(
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))", browser.find("#yaml"), text
    )


def test_what_was_written_is_there_again_and_a_mistake_is_shown_at_its_line_and_field(
    browser: Browser, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = f"{live_server.url}/releases/new?from=ds-flash@8"
    browser.driver.get(page)
    begun = str(browser.run("return document.getElementById('yaml').value"))
    browser.find("#ed-form summary").click()
    type_text(browser, begun + "# mine\n")
    browser.wait(lambda: "It fits." in browser.find("#dry-run").text)
    browser.find("input[name=note]").send_keys("lower ITL")
    wrong = ("denv.yaml:6:26  release.topology.prefill.gpus: 0 is not a number of GPUs; it must be at least 1",)
    with monkeypatch.context() as patch:
        patch.setattr("frontend.pages.releases.dry_run_view", lambda **_: replace(samples.dry_run(errors=False), file_errors=wrong))
        typed = browser.run(
            "const [yaml, text] = arguments; yaml.value = text; yaml.dispatchEvent(new Event('input', {bubbles: true}));"
            "document.body.dispatchEvent(new CustomEvent('htmx:afterSettle', {bubbles: true, detail: {target: document.body}}));"
            "return document.querySelector('[data-release]').ariaDisabled",
            browser.find("#yaml"),
            begun + "# mine too\n",
        )
        assert typed == "true", "its plan is that of another text, whatever else of the page is renewed"
        browser.wait(lambda: "1 mistake in the file" in str(browser.find("#announce").get_attribute("textContent")))
    field = browser.find("[data-path='release.topology.prefill.gpus']")
    assert field.get_attribute("aria-invalid") == "true" and field.get_attribute("aria-describedby") == "fe-1"
    assert browser.run("return document.querySelector('[data-numbers] li[data-s=bad]').textContent") == "6"
    assert browser.find("#yaml").get_attribute("aria-invalid") == "true"
    type_text(browser, begun + "# mine\n")
    browser.wait(lambda: "It fits." in browser.find("#dry-run").text)
    assert browser.find("input[name=note]").get_attribute("value") == "lower ITL"
    browser.driver.get(page)
    browser.wait(lambda: browser.find("#draft").is_displayed())
    assert browser.run("return document.getElementById('yaml').value") == begun + "# mine\n"
    assert browser.violations() == []
    browser.find("#draft button").click()
    assert browser.run("return [document.getElementById('yaml').value, Object.keys(localStorage).length]") == [begun, 0]


def test_the_form_and_the_text_are_two_views_of_one_text(browser: Browser, live_server: LiveServer) -> None:
    browser.driver.get(f"{live_server.url}/releases/new?from=ds-flash@8")
    browser.find("#ed-form summary").click()
    browser.wait(lambda: browser.run("return document.querySelector('[data-path=\"release.topology.prefill.gpus\"]')"))
    gpus = browser.find("[data-path='release.topology.prefill.gpus']")
    gpus.send_keys(Keys.CONTROL + "a" + Keys.NULL + "8", Keys.ENTER)
    browser.wait(lambda: "prefill: { gpus: 8, replicas: 3 }" in browser.run("return document.getElementById('yaml').value"))
    browser.wait(lambda: "It fits." in browser.find("#dry-run").text)  # the change was typed into the text, so it was run dry
    browser.find("#yaml").click()  # a field that is being written in is left alone
    text = browser.run("return document.getElementById('yaml').value").replace("gpus: 8", "gpus: 2")
    type_text(browser, text)
    browser.wait(lambda: gpus.get_attribute("value") == "2")
    assert browser.violations() == []
    browser.width(390)
    assert browser.too_wide() == ""


def test_tiles_of_a_large_fleet_are_one_tab_stop(browser: Browser, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleets.api.access.fleet_maps", lambda names: (samples.many_domains(),))
    browser.driver.get(f"{live_server.url}/fleets")
    assert browser.violations() == []
    browser.run("document.querySelector('.tile').focus()")
    ActionChains(browser.driver).send_keys(Keys.ARROW_RIGHT).perform()
    assert browser.run("return document.activeElement === document.querySelectorAll('.tile')[1]")
    assert "free" in browser.find("[data-tile-info]").text
    refresh(browser)
    assert browser.run("return document.activeElement === document.querySelectorAll('.tile')[1]")


def test_the_range_of_all_charts_is_in_the_address(browser: Browser, live_server: LiveServer) -> None:
    browser.driver.get(live_server.url + STAGE)
    axes = "return [...new Set([...document.querySelectorAll('.plot')].map((p) => JSON.stringify(p._fullLayout?.xaxis.range)))]"
    address = "return location.search"
    browser.wait(lambda: browser.run("return document.querySelectorAll('.plot .main-svg').length") > 20)
    first = browser.find("#plot-itl .nsewdrag")
    ActionChains(browser.driver).move_to_element_with_offset(first, -100, 0).click_and_hold().move_by_offset(150, 0).release().perform()
    browser.wait(lambda: str(browser.run(address)).startswith("?from="))
    zoomed = browser.run(address)
    browser.wait(lambda: browser.find("#sg-range").text.endswith("standing still") and len(browser.run(axes)) == 1)
    seen = browser.run(axes)
    browser.driver.get(browser.run("return location.href"))  # whoever opens the link sees the same picture
    browser.wait(lambda: browser.run(axes) == seen)
    assert browser.run(address) == zoomed
    hour = browser.find('[data-range="range=1h"]')
    hour.send_keys(Keys.ENTER)
    browser.wait(lambda: browser.run(address) == "?range=1h" and browser.find("#sg-range").text == "" and browser.run(axes) != seen)
    assert hour.get_attribute("aria-current") == "true"
    browser.driver.back()
    browser.wait(lambda: browser.run(address) == zoomed and browser.run(axes) == seen)
    browser.driver.forward()
    browser.wait(lambda: browser.run(address) == "?range=1h" and hour.get_attribute("aria-current") == "true" and browser.run(axes) != seen)
    browser.find("button[data-live]").click()
    assert str(browser.run(address)).startswith("?from=")  # paused: it stands still
    quarter = browser.find('[data-range="range=15m"]')
    quarter.send_keys(Keys.ENTER)
    browser.wait(lambda: quarter.get_attribute("aria-current") == "true" and str(browser.run(address)).startswith("?from="))
    hour.send_keys(Keys.ENTER)
    browser.wait(lambda: hour.get_attribute("aria-current") == "true")
    browser.find("button[data-live]").click()
    assert browser.run(address) == "?range=1h"
    assert browser.complaints() == []


def test_a_part_that_fails_keeps_what_it_showed_and_says_so_until_it_is_there_again(
    browser: Browser, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("the metrics are away")

    browser.driver.get(live_server.url + PAGES["rollout"])
    browser.wait(lambda: browser.run("return document.querySelector('#rl-back .will')"))
    browser.wait(lambda: browser.driver.title == "(2) Rollout 7 → 8: rolling · ds-flash/prod-us · denv")
    note = "#rl-back > [data-failed]"
    with monkeypatch.context() as patch:
        patch.setattr("frontend.pages.rollout.stage_view", broken)
        look_again(browser)
        browser.wait(lambda: browser.run("return document.querySelector(arguments[0])", note))
        browser.run("document.querySelector('[data-live]').click()")
        assert "denv answered with error 500" in browser.find(note).text
        assert browser.find(f"{note} code").text != ""
        assert browser.run("return document.querySelector('#rl-back .will')"), "what was known is still there"
        assert not browser.find("#offline").is_displayed(), "denv did answer"
        assert browser.violations() == []
    browser.find(f"{note} button").click()
    browser.wait(lambda: not browser.run("return document.querySelector(arguments[0])", note))
    assert browser.run("return document.querySelector('#rl-back .will')")
    browser.complaints()


def look_again(browser: Browser) -> None:
    browser.run("document.body.dispatchEvent(new CustomEvent('denv:refresh'))")


def test_a_page_that_is_no_longer_its_reader_s_says_so(browser: Browser, live_server: LiveServer, settings: Any) -> None:
    browser.driver.get(live_server.url + PAGES["rollout"])
    settings.DEFAULT_ROLE = "viewer"
    look_again(browser)
    browser.wait(lambda: browser.run("return document.getElementById('no-role')"))
    back = browser.run("return [...document.querySelectorAll('#rl-head .btn.danger')].at(-1)")
    assert back.get_attribute("aria-disabled") == "true" and back.get_attribute("aria-describedby") == "no-role"
    assert "Rolling back takes the role admin or operator." in browser.find("#no-role").text
    settings.DEFAULT_ROLE = "none"
    look_again(browser)
    browser.wait(lambda: "not yours to see" in browser.find("#main").text)
    browser.complaints()
