"""A stale page plus the events that came since is a fresh page.

The page's rule is: an event means "ask for what lives in you again, and put it in the place of what you have" (live.js; morph.js
does it in a browser, which tests/e2e/test_browser_live.py checks). So two things must hold: whatever changes a page is told
by an event that its reader may see, and what a page asks for again is, to the letter, what a fresh page has.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleets.services import node_cordon
from metrics.selectors import events_after, latest_seq
from releases.models import Rollout
from releases.services import rollouts
from releases.services.releases import release_create
from tests.integration.rollouts_world import STAGE, Demo, release_yaml

NODE = "gb200-use1-d03-n01"
_TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="[^"]*"')
_CLOCK = re.compile(r'As of [\d:]+|<progress.*?</progress>|[\d.:]+ (s|min|h) of|href="\?from=[^"]*"')  # what the clock alone changes


@pytest.fixture
def client(transactional_db: None) -> Client:
    """A person who may see and do everything."""
    client = Client()
    client.force_login(User.objects.create_user("ada"))
    return client


def plain(text: str) -> str:
    return _CLOCK.sub("", _TOKEN.sub("", text)).strip()


def fresh(client: Client, path: str) -> str:
    """What lives in a page that was just loaded; all of a part."""
    text = client.get(path).content.decode()
    found = re.search(r"<main [^>]*>(.*)</main>", text, re.DOTALL)
    assert found is not None or "<html" not in text
    return plain(found[1] if found else text)


def again(client: Client, path: str) -> str:
    """What the page gets when it asks again."""
    return plain(client.get(path, headers={"hx-request": "true"}).content.decode())


class Tab:
    """A page in a browser's tab, which hears events and follows the rule."""

    def __init__(self, client: Client, path: str) -> None:
        self.client, self.path = client, path
        self.html, self.seq = fresh(client, path), latest_seq()

    def hear(self) -> int:
        """Take in what came since; how many events that was."""
        events = events_after(seq=self.seq)
        if events:
            self.seq, self.html = events[-1].seq, again(self.client, self.path)
        return len(events)


def test_a_stale_page_and_its_events_are_a_fresh_page(client: Client) -> None:
    demo = Demo()
    demo.first()
    units, model = f"/stages/{STAGE}/units?base=ds-flash@1", "/releases/ds-flash/1"
    listed = ("/", "/fleets", f"/stages/{STAGE}", "/releases", "/events", "/attention", units, model, f"{model}/rollouts")
    pages = {path: Tab(client, path) for path in (*listed, f"/fleets/nodes/{NODE}")}
    changes: list[tuple[Callable[[], object], set[str]]] = [
        (
            lambda: node_cordon(node=NODE, cordoned=True, actor="ada", via="ui", reason="fan"),
            {"/fleets", "/events", f"/fleets/nodes/{NODE}"},
        ),
        (
            lambda: release_create(yaml=release_yaml(block=32), actor="ada", via="ui"),
            {"/", f"/stages/{STAGE}", "/releases", "/events", model, f"{model}/rollouts"},
        ),
        (lambda: demo.tick(2.0), {f"/stages/{STAGE}", "rollout", units}),
        (lambda: rollouts.rollout_pause(stage=STAGE, actor="ada", via="ui"), {"/", f"/stages/{STAGE}", "/events", "rollout", "/attention"}),
        (lambda: rollouts.rollback(stage=STAGE, actor="ada", via="ui"), {"/", f"/stages/{STAGE}", "/events", "rollout"}),
    ]
    for change, touched in changes:
        before = {path: tab.html for path, tab in pages.items()}
        change()
        for path, tab in pages.items():
            assert tab.hear() > 0, path
            assert tab.html == fresh(client, tab.path), path
        if "rollout" not in pages and Rollout.objects.count() > 1:
            pages["rollout"] = Tab(client, f"/rollouts/{demo.rollout().pk}")
            before["rollout"] = pages["rollout"].html
        moved = {path for path, tab in pages.items() if tab.html != before[path]}
        assert touched <= moved, f"{touched - moved} show nothing of it"
    part = again(client, f"/stages/{STAGE}/way-back?rollout={demo.rollout().pk}")  # is asked for as the page is
    assert "on its way back to release 1" in part
