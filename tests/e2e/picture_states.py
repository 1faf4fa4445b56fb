"""States of pages that are seldom seen: empty, loading, failed, unanswered, read-only, stale, crowded, in the colours of the system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from denvweb.core.errors import ConflictError
from tests.e2e.browser import Browser
from tests.integration import page_samples as samples

State = Callable[[Browser, str, pytest.MonkeyPatch, Any], None]
STAGE, HELD = "/stages/ds-flash/prod-us", "/stages/kimi-k2/prod-us"


def empty(browser: Browser, base: str, patch: pytest.MonkeyPatch, _: Any) -> None:
    """Nothing was ever released, and no fleet has joined."""
    for name in ("stage_heads", "fleet_heads", "events_view"):
        patch.setattr(f"frontend.pages.overview.{name}", lambda **_: ())
    browser.driver.get(base)


def loading(browser: Browser, base: str, patch: pytest.MonkeyPatch, _: Any) -> None:
    """Before the parts of a page have come."""
    browser.blocked("*/units?*", "*/ratio", "*/charts?*")
    browser.driver.get(base + STAGE)
    browser.run("document.getElementById('offline').remove()")


def failed(browser: Browser, base: str, patch: pytest.MonkeyPatch, _: Any) -> None:
    """One part is answered with an error."""

    def broken(**_: object) -> None:
        raise RuntimeError("away")

    browser.driver.get(base + STAGE)
    browser.wait(lambda: browser.run("return document.querySelector('.unit .flow') && document.querySelector('.plot .main-svg')"))
    patch.setattr("frontend.pages.stage.metrics_view", broken)
    browser.wait(lambda: browser.run("return document.querySelector('[data-failed]')"))
    browser.run("document.getElementById('sg-charts').remove()")  # the part is below them


def lost(browser: Browser, base: str, patch: pytest.MonkeyPatch, _: Any) -> None:
    """The server does not answer."""
    browser.driver.get(f"{base}/fleets")
    browser.offline(True)
    browser.wait(lambda: browser.find("#offline").is_displayed(), 20)


def read_only(browser: Browser, base: str, patch: pytest.MonkeyPatch, settings: Any) -> None:
    """Somebody who may look only, where something waits for an approval."""
    settings.DEFAULT_ROLE = "viewer"
    User.objects.filter(username="oncall-a").update(is_superuser=False)
    browser.driver.get(base + HELD)
    browser.wait(lambda: browser.run("return document.querySelector('.plot .main-svg')"))


def stale(browser: Browser, base: str, patch: pytest.MonkeyPatch, _: Any) -> None:
    """Somebody approved what was another rollout by then."""

    def moved(**_: object) -> None:
        text = "The rollout has moved on to generation 4119 since 4118: paused by deployer-b. Look again, then decide."
        raise ConflictError(text, code="stale-generation")

    patch.setattr("releases.services.rollouts.rollout_promote", moved)
    patch.setattr("frontend.pages.actions.access_promote", lambda *_, generation: generation)
    browser.driver.get(base + HELD)
    browser.find("#sg-head .btn.primary").click()
    browser.wait(lambda: browser.run("return document.querySelector('.messages .note')"))
    browser.wait(lambda: browser.run("return document.querySelector('.plot .main-svg')"))


def dense(browser: Browser, base: str, patch: pytest.MonkeyPatch, _: Any) -> None:
    """A thousand domains."""
    patch.setattr("fleets.api.access.fleet_maps", lambda names: (samples.many_domains(1000),))
    browser.driver.get(f"{base}/fleets")
    browser.find(".tile").click()


def system_colours(browser: Browser, base: str, patch: pytest.MonkeyPatch, _: Any) -> None:
    """Colours forced by the system."""
    browser.media("forced-colors", "active")
    browser.driver.get(base)


STATES: dict[str, State] = {
    "state-empty": empty,
    "state-loading": loading,
    "state-failed": failed,
    "state-no-answer": lost,
    "state-read-only": read_only,
    "state-stale": stale,
    "fleets-dense": dense,
    "state-forced-colours": system_colours,
}
