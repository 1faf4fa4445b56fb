"""A real Chromium for tests of pages: signed in, at a given width and theme, with axe at hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import axe_core_python
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
)
_AXE = Path(axe_core_python.__file__).parent / "axe.min.js"
_WIDE = """return document.documentElement.scrollWidth <= innerWidth ? '' : [...document.querySelectorAll('main *')]
  .filter((el) => el.getBoundingClientRect().right > innerWidth + 1).slice(0, 3)
  .map((el) => el.outerHTML.slice(0, 120)).join(' | ') || 'page'"""


class Browser:
    """One browser process with a profile of its own."""

    def __init__(self, *, stream: bool = False) -> None:
        self._profile = TemporaryDirectory(prefix="denv-chromium-", ignore_cleanup_errors=True)
        options = Options()
        options.binary_location = "/usr/bin/chromium"
        for flag in (*FLAGS, f"--user-data-dir={self._profile.name}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "SEVERE"})
        self.driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        self._cdp("Network.enable", {})
        if not stream:  # the test server is not asynchronous: an endless stream would hold one of its threads for ever
            self.blocked()

    def close(self) -> None:
        """End the browser and forget its profile."""
        self.driver.quit()
        self._profile.cleanup()

    def _cdp(self, command: str, options: dict[str, Any]) -> Any:
        return self.driver.execute_cdp_cmd(command, options)

    def sign_in(self, base: str, session: str) -> None:
        """Carry the session of a Django test client over; the theme is the system's again."""
        self.driver.get(f"{base}/login")
        self.driver.delete_all_cookies()
        self.driver.add_cookie({"name": "sessionid", "value": session})
        self.run("localStorage.clear()")

    def width(self, pixels: int) -> None:
        """Set the width of the viewport."""
        self._cdp("Emulation.setDeviceMetricsOverride", {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": False})

    def offline(self, is_so: bool) -> None:
        """Cut the browser off, or connect it again."""
        self._cdp("Network.emulateNetworkConditions", {"offline": is_so, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1})

    def blocked(self, *patterns: str) -> None:
        """Let no request through to these addresses, nor to the stream."""
        self._cdp("Network.setBlockedURLs", {"urls": ["*/api/v1/stream", *patterns]})

    def media(self, name: str, value: str) -> None:
        """What the system asks of pages: `prefers-contrast`, `forced-colors`; empty for nothing."""
        self._cdp("Emulation.setEmulatedMedia", {"features": [{"name": name, "value": value}] if value else []})

    def theme(self, name: str) -> None:
        """Force a theme as the button would."""
        self.run("document.documentElement.dataset.theme = arguments[0]; document.dispatchEvent(new CustomEvent('denv:theme'))", name)

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> WebElement:
        """The first element of a CSS selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def wait(self, what: Callable[[], object], timeout_s: float = 10) -> None:
        """Wait until `what` gives something true."""
        WebDriverWait(self.driver, timeout_s, poll_frequency=0.05).until(lambda _: what())

    def too_wide(self) -> str:
        """What makes the page scroll sideways; empty when nothing does."""
        return str(self.run(_WIDE))

    def violations(self, *rules: str) -> list[str]:
        """What axe finds wrong, in its own words: by all rules, or by those named."""
        if not self.run("return 'axe' in window"):
            self.run(_AXE.read_text())
        found = self.driver.execute_async_script(
            "const [rules, done] = arguments, only = rules.length ? {runOnly: rules} : {};"
            "axe.run({exclude: ['.plot > *', '.gmap > *']}, {resultTypes: ['violations'], ...only})"
            ".then((r) => done(JSON.stringify(r.violations)))",
            list(rules),
        )
        return [
            f"{rule['id']}: {node['html'][:120]} {node['failureSummary'][:200]}" for rule in json.loads(found) for node in rule["nodes"]
        ]

    def complaints(self) -> list[str]:
        """Errors in the console, without the two known ones: the blocked stream, and Plotly's styles for maps, which are not used."""
        known = ("/api/v1/stream", "/assets/plotly-")
        lines = [str(line["message"]) for line in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]  # as above
        return [line for line in lines if not any(word in line for word in known)]
