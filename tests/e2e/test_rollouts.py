"""Rollouts on real processes under traffic: a bad release goes back by itself, a good one stays, and the way back is one call."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from denvweb.cli.client import Client
from fleets.domain.views import FleetMap
from metrics.domain.views import EventView
from releases.domain.views import PreflightView, RolloutView, StageView
from tests.chaos.watch import Seen, Watch
from tests.docs.blocks import blocks
from tests.e2e.instance import ROOT, Instance
from tests.e2e.person import Person, roll_back_with_the_mouse, roll_back_with_two_enters, write_a_release

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

STAGE = "ds-flash/prod-us"
# Shorter holds and a wider canary than a person would choose: the judge is the same, it only gets its requests sooner.
POLICY = "rollout: { canary: 30%, steps: [100%], hold: 3s, bake: 4s, min-requests: 30, max-wait: 2m }"
# Other weights, so that both pools are others; the policy as above. By the paths of the release's form, in the order of the file.
GOOD = {
    "release.weights": "hf://deepseek-ai/DeepSeek-V4.1-Flash-1017@c41a7e3",
    "stages.prod-us.rollout.canary": "30%",
    "stages.prod-us.rollout.hold": "3s",
    "stages.prod-us.rollout.bake": "4s",
    "stages.prod-us.rollout.max-wait": "2m",
}


def release_file(tmp_path: Path, name: str, change: str) -> Path:
    text = (ROOT / "denvweb/local/data/demo.yaml").read_text(encoding="utf-8")
    lines = [f"    {POLICY}" if line.strip().startswith("rollout:") else line for line in text.splitlines()]
    at = next(index for index, line in enumerate(lines) if line.startswith("stages:"))
    path = tmp_path / f"{name}.yaml"
    path.write_text("\n".join([*lines[:at], change, *lines[at:]]) + "\n", encoding="utf-8")
    return path


def start_traffic(demo: Instance, tmp_path: Path, seconds: int) -> Any:
    """Ten short requests a second beside the demo's own: a judge needs requests, not long answers."""
    trace = tmp_path / "short.csv"
    rows = (f"{index / 10},{1200 if index % 3 else 200},24" for index in range(seconds * 10))
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return demo.spawn("replay", str(trace), "--stage", STAGE, "--json")


def report_of(traffic: Any) -> dict[str, Any]:
    out, _ = traffic.communicate(timeout=180)
    report: dict[str, Any] = json.loads(out)
    return report


def roll_out(demo: Instance, path: Path) -> str:
    done = demo.run("release", "-f", str(path), "--json")
    assert done.status == 0, done.err
    rollout: str = done.json()["rollouts"][0]["id"]
    return rollout


def ended(client: Client, rollout: str) -> RolloutView | None:
    view = client.get(f"rollouts/{rollout}", RolloutView)
    return None if view.active else view


def events_of(demo: Instance, rollout: str) -> list[EventView]:
    rows = demo.client().get_list(f"stages/{STAGE}/events", EventView, limit=200)
    return [row for row in rows if row.rollout == rollout]


def until_all_traffic_is_on(demo: Instance, target: str) -> float:
    """Seconds until every router has confirmed it."""
    client, began_s = demo.client(), time.monotonic()

    def confirmed() -> bool:
        routers = client.get(f"stages/{STAGE}", StageView).routers
        return routers.weights == {target: 10_000} and routers.live > 0 and routers.confirmed >= routers.generation

    demo.until(confirmed, timeout_s=30, what=f"all traffic on {target}")
    return time.monotonic() - began_s


@contextmanager
def streamed(demo: Instance, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """What `curl` has printed of the journal's stream so far, typed as the page about the API says."""
    saved = json.loads((demo.home / "credentials" / "cli.json").read_text(encoding="utf-8"))
    (stream,) = (text for text in blocks("reference/api.md", "sh") if "curl -N" in text)
    log_in = blocks("howto/curl.md", "sh")[0]
    said = tmp_path / "stream.txt"
    env = {**demo.env, "DENV_URL": saved["url"], "DENV_TOKEN": saved["token"], "no_proxy": "127.0.0.1"}
    with said.open("w") as out:
        process = subprocess.Popen(["bash", "-c", f"{log_in}\nexec {stream}"], cwd=tmp_path, env=env, stdout=out)
        try:
            yield lambda: said.read_text(encoding="utf-8")
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture(scope="module")
def person(demo: Instance) -> Iterator[Person]:
    """One browser for all of these tests: it is signed in once."""
    somebody = Person(demo)
    yield somebody
    somebody.close()


def fill_the_fleet(demo: Instance) -> list[str]:
    """Take every domain that no unit of the stable release stands on out of use; the nodes. What is warm there stops."""
    client = demo.client()
    stage = client.get(f"stages/{STAGE}", StageView)
    mine = {unit.domain for unit in stage.units if unit.release == f"ds-flash@{stage.release}"}
    fleet = next(fleet for fleet in client.get_list("fleets", FleetMap) if fleet.fleet in stage.fleets)
    nodes = [node.node for domain in fleet.domains if domain.domain not in mine for node in domain.nodes]
    for node in nodes:
        client.post(f"nodes/{node}/drain", dict[str, Any], {"reason": "the fleet is full"})
    demo.until(
        lambda: {unit.domain for unit in client.get(f"stages/{STAGE}", StageView).units} == mine, timeout_s=60, what="only they stand"
    )
    return nodes


def serving(seen: Seen) -> int:
    """Units that a router may send to, of all releases."""
    return sum(seen.capacity(release) for release in {unit.release for unit in seen.table.units})


def test_in_place_on_a_full_fleet_back_and_forward(demo: Instance, person: Person, tmp_path: Path) -> None:
    client = demo.client()
    demo.until(lambda: client.get(f"stages/{STAGE}", StageView).state == "steady", timeout_s=90, what="steady")
    stable = f"ds-flash@{client.get(f'stages/{STAGE}', StageView).release}"
    nodes = fill_the_fleet(demo)
    watch = Watch(demo.home / "routers")
    try:
        with watch.watching():
            path = release_file(tmp_path, "in-place", "  engine: { decode: { speculative-draft-length: 5 } }")
            traffic = start_traffic(demo, tmp_path, 50)
            first = roll_out(demo, path)
            plan = client.get(f"rollouts/{first}", RolloutView).plan
            assert (plan.surge, plan.capacity_ratio_min) == (False, 0.5)
            canary = f"ds-flash@{plan.to_release}"
            demo.until(lambda: watch.tables and canary in watch.tables[-1].weights, timeout_s=60, what="the canary has its share")
            assert (watch.tables[-1].capacity(canary), watch.tables[-1].capacity(stable)) == (1, 1)
            roll_back_with_the_mouse(person, STAGE)
            person.leave()
            back = demo.until(lambda: ended(client, first), timeout_s=90, what="it is back")
            assert back.state == "rolled-back", back.why
            assert watch.tables[-1].weights == {stable: 10_000} and watch.tables[-1].capacity(stable) == 2
            again = roll_out(demo, path)
            second = demo.until(lambda: ended(client, again), timeout_s=240, what="it is through")
            assert second.state == "succeeded", second.why
            assert watch.tables[-1].capacity(f"ds-flash@{second.to_release}") == 2
        assert report_of(traffic)["failed"] == 0
        assert min(serving(seen) for seen in watch.tables) / 2 >= plan.capacity_ratio_min  # the other unit served all the while
    finally:
        for node in nodes:
            client.post(f"nodes/{node}/uncordon", dict[str, Any], {})


def test_a_slow_release_goes_back_by_itself_before_a_readers_eyes(demo: Instance, person: Person, tmp_path: Path) -> None:
    client = demo.client()
    demo.until(lambda: client.get(f"stages/{STAGE}", StageView).state == "steady", timeout_s=90, what="steady")
    stable = client.get(f"stages/{STAGE}", StageView).release
    with streamed(demo, tmp_path) as printed:
        demo.until(lambda: '"username"' in printed(), timeout_s=20, what="curl is logged in")
        path = release_file(tmp_path, "slow", "  simulated-faults: { decode: { slow-factor: 3 } }")
        rollout = roll_out(demo, path)
        act = f"stages/{STAGE}/rollout"
        demo.until(lambda: client.post(f"{act}/pause", RolloutView, {}), timeout_s=30, what="it has begun, and waits until somebody looks")
        person.listen(f"/rollouts/{rollout}")
        traffic = start_traffic(demo, tmp_path, 35)
        client.post(f"{act}/resume", RolloutView, {})
        view = demo.until(lambda: ended(demo.client(), rollout), timeout_s=150, what="the slow release is judged")
        assert view.state == "rolled-back", view.why
        taken_back = f"release {view.to_release} is taken back to release {stable}: itl-p99"
        demo.until(lambda: taken_back in printed(), timeout_s=30, what="the stream has it")
    person.hear(taken_back)
    person.hear("rolled back")
    person.see("#rl-steps", "tripped")
    person.see("#rl-events", taken_back)
    assert person.told()[0] == "held", "the page was never loaded again"
    person.leave()
    report = report_of(traffic)
    assert report["failed"] == 0, report
    breach = [event for event in events_of(demo, rollout) if "itl-p99" in event.sentence and event.evidence]
    assert breach, [event.sentence for event in events_of(demo, rollout)]
    stage = demo.client().get(f"stages/{STAGE}", StageView)
    assert stage.release == stable
    assert stage.routers.weights == {f"ds-flash@{stable}": 10_000}


def test_a_good_release_is_written_in_the_form_and_two_enters_go_back(demo: Instance, person: Person, tmp_path: Path) -> None:
    client = demo.client()
    demo.until(lambda: client.get(f"stages/{STAGE}", StageView).state == "steady", timeout_s=90, what="steady")
    before = client.get(f"stages/{STAGE}", StageView).release
    assert before is not None
    person.open(f"/stages/{STAGE}")
    person.see("#sg-head", "Steady")
    write_a_release(person, before, changes=GOOD, note="fewer steps for the same tokens")
    traffic = start_traffic(demo, tmp_path, 50)
    person.press(Keys.ENTER)
    person.see(".messages", f"Release {client.get(f'stages/{STAGE}/rollout', RolloutView).to_release} of ds-flash is written down")
    rollout = client.get(f"stages/{STAGE}/rollout", RolloutView)
    assert (rollout.from_release, rollout.started_by) == (before, "admin")
    view = demo.until(lambda: ended(demo.client(), rollout.id), timeout_s=200, what="the good release is through")
    assert view.state == "succeeded", view.why

    preflight = client.get(f"stages/{STAGE}/preflight", PreflightView)
    assert (preflight.possible, preflight.to_release) == (True, before)
    assert preflight.warm_units == 1
    assert "warm" in preflight.sentence
    person.enter("#re-where th a")
    roll_back_with_two_enters(person)
    took_s = until_all_traffic_is_on(demo, f"ds-flash@{before}")
    assert took_s < 10  # an instant way back and not a cold start; the figure itself is the benchmark's
    person.leave()
    demo.until(lambda: client.get(f"stages/{STAGE}", StageView).state == "steady", timeout_s=90, what="both units are back")
    assert report_of(traffic)["failed"] == 0
