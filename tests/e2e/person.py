"""Somebody in front of a whole denv: a real browser that a keyboard steers, and a mouse where a test says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psutil
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.e2e.browser import Browser
from tests.e2e.instance import Instance

_MOST_TABS = 300
_WAIT_S = 60.0
_NICE = 5  # a person's browser computes on a machine of its own; here it gives way to what serves, but is not starved by it
# What a reader is told without asking: each state in the head of the page, each announcement, and whether the stream is open.
_READING = """
window.told = [];
const Stream = EventSource;
window.EventSource = class extends Stream { constructor(...given) { super(...given); window.heard = this; } };
addEventListener('DOMContentLoaded', () => {
  const last = {};
  const look = () => {
    for (const selector of ['#main h1 ~ .lede .badge', '#announce']) {
      const text = document.querySelector(selector)?.textContent.replace(/\\s+/g, ' ').trim();
      if (text && text !== last[selector]) window.told.push(last[selector] = text);
    }
  };
  look();
  new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true});
});
"""


class Person:
    """Signed in as the administrator that `denv up` made. Every wait is for something to be seen."""

    def __init__(self, demo: Instance) -> None:
        self.base = f"http://127.0.0.1:{demo.port}"
        self.browser = Browser(stream=True)
        service = psutil.Process(self.browser.driver.service.process.pid)
        for process in (service, *service.children(recursive=True)):
            process.nice(_NICE)
        self.browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _READING})
        self.browser.width(1440)
        self._log_in((demo.home / "credentials" / "admin-password").read_text().strip())

    def _log_in(self, password: str) -> None:
        self.open("/login")
        self.tab_to("input[name=username]")
        self.press("admin", Keys.TAB, password, Keys.ENTER)
        self.see("main h1")

    def close(self) -> None:
        """End the browser."""
        self.browser.close()

    def open(self, path: str) -> None:
        """Type an address."""
        self.browser.driver.get(self.base + path)

    def leave(self) -> None:
        """Look at nothing: a page that is open asks for figures all the time."""
        self.browser.driver.get("about:blank")

    def text(self, selector: str) -> str:
        """What is shown there now; empty when there is no such thing."""
        found = self.browser.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return str(found)

    def see(self, selector: str, words: str = "") -> None:
        """Wait until something is there with these words in it."""
        self._until(lambda: self.browser.run("return !!document.querySelector(arguments[0])", selector) and words in self.text(selector))

    def _until(self, look: Callable[[], object]) -> None:
        def tried() -> object:
            try:
                return look()
            except WebDriverException:  # the page is being left, or what was found has been drawn anew
                return None

        self.browser.wait(tried, _WAIT_S)

    # ---- keyboard ----

    def press(self, *keys: str) -> None:
        """Type, wherever the focus is."""
        ActionChains(self.browser.driver).send_keys(*keys).perform()

    def tab_to(self, selector: str) -> None:
        """Move the focus to something with the Tab key alone; AssertionError when no number of them leads there."""
        self.see(selector)
        for _ in range(_MOST_TABS):
            if self.browser.run("return document.activeElement?.matches(arguments[0]) ?? false", selector):
                return
            self.press(Keys.TAB)
        raise AssertionError(f"the Tab key does not lead to {selector}")

    def enter(self, selector: str) -> None:
        """Tab there, and Enter."""
        self.tab_to(selector)
        self.press(Keys.ENTER)

    def fill_in(self, path: str, value: str) -> None:
        """A field of the release's form, which writes it into the text."""
        self.tab_to(f"[data-path='{path}']")
        ActionChains(self.browser.driver).key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).send_keys(value, Keys.ENTER).perform()
        written = f"{path.rpartition('.')[2]}: {value}"
        self._until(lambda: written in self.browser.run("return document.querySelector('[data-yaml]').value"))

    # ---- mouse ----

    def click(self, selector: str) -> None:
        """With the mouse."""

        def clicked() -> bool:
            self.browser.find(selector).click()
            return True

        self.see(selector)
        self._until(clicked)

    # ---- reading ----

    def listen(self, path: str) -> None:
        """Open a page and wait until its stream of events is open."""
        self.open(path)
        self._until(lambda: self.browser.run("return window.heard?.readyState") == 1)

    def told(self) -> list[str]:
        """What the page that is open has said since it was opened, oldest first: a reload forgets it."""
        return [str(text) for text in self.browser.run("return window.told")]

    def hear(self, words: str) -> None:
        """Wait until the page has said something with these words, by itself."""
        self._until(lambda: any(words in text for text in self.told()))

    def shown(self, selector: str) -> bool:
        """Whether it can be seen now."""
        return any(element.is_displayed() for element in self.browser.driver.find_elements(By.CSS_SELECTOR, selector))


def roll_back_with_two_enters(person: Person) -> None:
    """From the stage's page: Roll back, read what it says, confirm."""
    person.enter("#rollback-open")
    person.see("#dlg-rollback[open]")
    assert "warm" in person.text("#dlg-rollback")
    assert person.shown("#dlg-rollback")
    person.press(Keys.ENTER)


def roll_back_with_the_mouse(person: Person, stage: str) -> None:
    """One click, and one to confirm what it says."""
    person.open(f"/stages/{stage}")
    person.click("#rollback-open")
    person.see("#dlg-rollback[open]")
    person.click("#dlg-rollback .btn.danger")
    person.see(".messages", "Rolling back")


def write_a_release(person: Person, number: int, *, changes: Mapping[str, str], note: str) -> None:
    """From the page of a stage to the Release button of its next one, which has the focus then. A mistake is mended on the way."""
    person.enter(f".rel[href$='/{number}']")
    person.see("#re-head h1", f"release {number}")
    person.enter("#re-head a.btn")
    person.enter("#ed-form summary")
    *others, (last, right) = changes.items()
    for path, value in others:
        person.fill_in(path, value)
    person.fill_in(last, "soon")
    person.see("#dry-run", "Cannot be released")
    assert "soon" in person.text("#dry-run")
    person.browser.run("document.querySelector('#dry-run > *').id = 'before'")
    person.fill_in(last, right)
    person.see("#dry-run > :not(#before)", "It fits.")
    person.tab_to("input[name=note]")
    person.press(note)
    person.tab_to("button[value=release]")
