"""`make bench-web`: how long pages take with 200 stages and a month of data, how late events are in a browser, when charts are there.

Prints a table, then one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.bench.web_seed import ROLLING, SEEN, setup

STAGE = f"/stages/{SEEN}"
PAGES = {
    "overview": "/",
    "attention": "/attention",
    "stage": STAGE,
    "stage, steady": "/stages/m150/prod-us",
    "stage's units": f"{STAGE}/units?base=ds-flash@2",
    "stage's charts": f"{STAGE}/charts",
    "charts, 1 h": f"{STAGE}/charts?range=1h",
    "charts, 1 h, first": "/stages/m{round}/prod-us/charts?range=1h",  # nobody has looked at it; the first twenty are at their canary
    "charts, 6 h": f"{STAGE}/charts?range=6h",
    "charts, 24 h": f"{STAGE}/charts?range=24h",
    "fleets": "/fleets",
    "releases": "/releases",
    "release": "/releases/ds-flash/3",
    "new release": "/releases/new",
    "events": "/events",
    "events of a stage": "/events?stage=m150/prod-us",
    "access": "/access",
    "settings": "/settings",
    "recipes": "/recipes",
}
_GLANCE_EVERY_S = 5.0  # as beat has it
_LAG_ROUNDS = 40
_CHART_ROUNDS = 5
_CHART_SEEN = """
new MutationObserver((_, self) => {
  if (!document.querySelector('.plot .main-svg .scatterlayer path')) return;
  window.firstChartMs = performance.now(); self.disconnect();
}).observe(document, {childList: true, subtree: true});
"""
_FOLLOW = """
window.heard = {};
const stream = new EventSource('/api/v1/stream');
stream.addEventListener('journal', (e) => { window.heard[JSON.parse(e.data).seq] = Date.now(); });
return new Promise((done) => { stream.onopen = () => done(true); });
"""
_HEARD = """
const [seq, done] = arguments;
const look = () => (window.heard[seq] ? done(window.heard[seq]) : setTimeout(look, 20));
look();
"""


def quantile(values: list[float], share: float) -> float:
    """The smallest that at least this share is not over."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@contextmanager
def web() -> Iterator[str]:
    """The web process as `denv up` starts it; its address."""
    from pathlib import Path

    from denvweb.local import programs
    from denvweb.local.embedded import free_port, wait_for_port

    port = free_port()
    settings = {"DJANGO_SETTINGS_MODULE": "denvweb.settings", "DENV_API_REQUESTS_PER_S": "10000"}
    child = programs.web({**os.environ, **settings, "DENV_SECRET_KEY": "bench"}, port)
    log = Path(os.environ["DENV_HOME"]).parent / "web.log"
    with log.open("w") as out:
        process = subprocess.Popen(child.argv, env={**os.environ, **child.env}, stdout=out, stderr=out)
    try:
        wait_for_port(port, timeout_s=60)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)
        sys.stderr.write(log.read_text()[-2000:])


@contextmanager
def worker() -> Iterator[None]:
    """What a worker does all the while that the overview depends on: glances are kept up, in a thread of their own."""
    from django.utils import timezone

    from metrics.services.glances import glances_write

    over = threading.Event()

    def work() -> None:
        while not over.wait(_GLANCE_EVERY_S):
            glances_write(now=timezone.now())

    glances_write(now=timezone.now())
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def session() -> str:
    """The session of a person who may see everything."""
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.test import Client

    settings.SECRET_KEY = "bench"
    client = Client()
    user, _ = User.objects.get_or_create(username="oncall-a", is_superuser=True)
    client.force_login(user)
    return client.cookies["sessionid"].value


def pages() -> dict[str, str]:
    """Names and paths: PAGES, and those of a rollout, whose id the database gives."""
    from releases.selectors.rollouts import rollouts_view

    rollout = rollouts_view(stage=SEEN, limit=1)[0].id
    return {**PAGES, "rollout": f"/rollouts/{rollout}", "its way back": f"{STAGE}/way-back?rollout={rollout}"}


def queries() -> dict[str, int]:
    """Queries by page, those of the session and of whoever asks included."""
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    client = Client(headers={"cookie": f"sessionid={session()}", "host": "127.0.0.1"})
    found = {}
    for name, path in pages().items():
        with CaptureQueriesContext(connection) as seen:
            response = client.get(path.format(round=ROLLING))
        assert response.status_code == 200, (path, response.status_code)
        found[name] = len(seen)
    return found


def times_ms(base: str, rounds: int) -> dict[str, list[float]]:
    """How long the server takes for each page, one request after the other, by the clock of who asks."""
    paths = pages()
    found: dict[str, list[float]] = {name: [] for name in paths}
    with httpx.Client(base_url=base, cookies={"sessionid": session()}, trust_env=False, timeout=60) as client:
        for number in range(rounds + 1):
            for name, path in paths.items():
                began = time.perf_counter()
                response = client.get(path.format(round=1 + number % (ROLLING - 1)))
                took_ms = (time.perf_counter() - began) * 1000
                assert response.status_code == 200, (path, response.status_code)
                if number:  # the first round loads templates and plans
                    found[name].append(took_ms)
    return found


def lags_s(base: str) -> list[float]:
    """From the commit of a journal row to the page's script that hears of it."""
    from metrics.services import event_append
    from tests.e2e.browser import Browser

    browser, found = Browser(stream=True), []
    try:
        browser.sign_in(base, session())
        browser.driver.get(f"{base}/events")
        browser.run(_FOLLOW)
        for _ in range(_LAG_ROUNDS):
            seq = event_append(kind="bench.mark", sentence="a mark of the bench", actor="bench", stage="m150/prod-us")
            committed_ms = time.time() * 1000
            found.append((browser.driver.execute_async_script(_HEARD, seq) - committed_ms) / 1000)
    finally:
        browser.close()
    return found


def first_charts_s(base: str) -> list[float]:
    """From the start of the navigation to the first line that is drawn; nothing is in the browser's cache the first time."""
    from tests.e2e.browser import Browser

    browser, found = Browser(), []
    try:
        browser.width(1440)
        browser.sign_in(base, session())
        browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _CHART_SEEN})
        for _ in range(_CHART_ROUNDS):
            browser.driver.get(f"{base}{STAGE}?range=1h")
            browser.wait(lambda: browser.run("return window.firstChartMs"), 30)
            found.append(browser.run("return window.firstChartMs") / 1000)
    finally:
        browser.close()
    return found


def main() -> None:
    """Seed, measure, print."""
    setup()
    from tests.bench.web_seed import seed, seeded

    began = time.perf_counter()
    if not seeded():
        seed()
    print(f"seeded in {time.perf_counter() - began:.0f} s", flush=True)
    counted = queries()
    with worker(), web() as base:
        took = times_ms(base, int(os.environ.get("ROUNDS", "40")))
        print(f"{'page':<20} {'queries':>7} {'median ms':>10} {'p95 ms':>8}")
        for name, values in took.items():
            print(f"{name:<20} {counted[name]:>7} {quantile(values, 0.5):>10.0f} {quantile(values, 0.95):>8.0f}", flush=True)
        if os.environ.get("ONLY") == "pages":
            return
        lag, chart = lags_s(base), first_charts_s(base)
    print(f"journal to browser: median {quantile(lag, 0.5):.2f} s, p99 {quantile(lag, 0.99):.2f} s of {len(lag)}")
    print(f"first chart: {', '.join(f'{value:.2f}' for value in chart)} s")
    figures: dict[str, Any] = {
        "page_p95_ms": round(max(quantile(values, 0.95) for values in took.values()), 1),
        "max_queries": max(counted.values()),
        "live_lag_p99_s": round(quantile(lag, 0.99), 3),
        "first_chart_s": round(quantile(chart, 0.5), 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
