"""GET /metrics of the control plane, and the Grafana dashboard: every name that it asks for is one that the programs expose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from denvweb.auth import token_create
from denvweb.models import Grant
from fleets.router.families import HELP, families
from fleets.router.telemetry import Series
from fleets.tasks import reconcile_task
from frontend.prometheus.families import FAMILIES, PREFIX
from metrics.domain.exposition import Kind, text_page
from metrics.domain.histogram import Histogram
from metrics.domain.types import Metric, Route, SeriesKey
from releases.models import Model
from releases.tasks import reconcile
from tests.integration.fake_engine import engines
from tests.integration.rollouts_world import STAGE, Demo, make_api
from tests.integration.router_bench import chat, pd_unit, router, table

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = DOCS / "grafana" / "denv.json"
REFERENCE = DOCS / "reference" / "metrics.md"
_SAMPLE = re.compile(r'([a-z_:][a-z0-9_:]*)(?:\{((?:[a-z_][a-z0-9_]*="(?:[^"\\\n]|\\.)*",?)*)\})? ([0-9.e+-]+|NaN|[+-]Inf)')
_LABEL = re.compile(r'([a-z_][a-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_COUNTED = (
    *("requests", "errors", "errors.decode", "cancelled", "reason.remote", "tokens.in", "kv.failed", "kv.recomputed"),
    *("goodput.met", "goodput.of", "retried.connect"),
)
_PROCESS = (
    *("table_generation", "reports_waiting", "prefix_blocks", "kv_event_batches", "kv_events_lost", "client_connections"),
    *("access_log_lines_lost", "unforeseen_failures", "tokenizer_loaded", "tokenizer_failures", "prompts_estimated"),
)


def _read(page: str) -> dict[str, tuple[Kind, dict[tuple[tuple[str, str], ...], float]]]:
    """Families of a page as strictly as Prometheus reads it: HELP and TYPE before the samples, and each label set once."""
    found: dict[str, tuple[Kind, dict[tuple[tuple[str, str], ...], float]]] = {}
    name, told = "", ""
    for line in page.splitlines():
        if line.startswith("# HELP "):
            told = line.split(" ", 3)[2]
            assert len(line.split(" ", 3)[3]) > 10, line
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert told == name and name not in found, line
            found[name] = (Kind(kind), {})
        else:
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            labels = tuple(sorted(_LABEL.findall(match[2] or "")))
            kind, samples = found[name]
            assert match[1] == name or (kind is Kind.HISTOGRAM and match[1] in {f"{name}_{end}" for end in ("bucket", "sum", "count")})
            assert ((*labels, ("", match[1]))) not in samples, line
            samples[(*labels, ("", match[1]))] = float(match[3])
    assert page.endswith("\n")
    return found


def _value(page: dict[str, Any], name: str, **labels: str) -> float:
    return float(page[name][1][(*sorted(labels.items()), ("", name))])


async def _router_page(tmp_path: Path) -> str:
    """All families of a router that has served, with a series that has counted whatever can go wrong beside its own."""
    async with engines("p", "d") as (p, d), router(tmp_path, table(pd_unit([p], [d]))) as bench:
        await bench.ask(chat("word " * 4000))
        bench.deltas()
        for replica in bench.app.stage.replicas.values():
            replica.kv_use = 0.5
        bench.app.stage.inflight["ds-flash@1"] = 1
        page = _read((await bench.get("/metrics")).body.decode())
        series = Series(SeriesKey(STAGE, "u-1", "ds-flash@1", "ds-flash@1", Route.REMOTE), ())
        series.total_counters = dict.fromkeys(_COUNTED, 1)
        series.total_histograms = {metric: Histogram() for metric in Metric}
        whole = text_page(families([series], bench.app.stage, dict.fromkeys(_PROCESS, 1.0), {"unauthorized": 1})).decode()
        assert page.keys() <= _read(whole).keys()
        return whole


def _fitting(names: dict[str, Any]) -> None:
    for name, (kind, samples) in names.items():
        assert (kind is Kind.COUNTER) == name.endswith("_total"), name
        assert kind is not Kind.HISTOGRAM or name.endswith("_seconds"), name
        assert not re.search(r"_(ms|milliseconds|percent|s)$", name), name  # base units, as Prometheus has them
        assert samples, name


@pytest.mark.django_db
def test_the_page_tells_of_stages_rollouts_fleets_and_of_the_control_plane_itself() -> None:
    demo, api = Demo(), make_api()
    demo.first()
    demo.release(block=32)
    while not demo.rollout().verdicts:
        demo.tick(requests=20)
    reconcile_task()
    reconcile()
    reconcile()
    with CaptureQueriesContext(connection) as queries:
        answer = api.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"})
    assert answer.status_code == 200 and answer["content-type"].startswith("text/plain; version=0.0.4")
    assert len(queries) <= 22, [query["sql"][:90] for query in queries]
    page = _read(answer.content.decode())
    _fitting(page)
    assert page.keys() == {PREFIX + name for name in FAMILIES}
    assert sum(_value(page, "denv_stage_state", stage=STAGE, state=state) for state in ("steady", "rolling", "held", "baking")) == 1
    assert _value(page, "denv_stage_units_wanted", stage=STAGE) == 2
    assert _value(page, "denv_loop_passes_total", loop="releases.reconcile") == 2
    assert 0 <= _value(page, "denv_loop_age_seconds", loop="fleets.reconcile") < 600
    assert _value(page, "denv_fleet_nodes", fleet="gb200-use1", state="ready") == 3
    assert _value(page, "denv_outbox_pending", kind="webhook") == 0
    active = [dict(labels) for labels in page["denv_rollout_active"][1]]
    assert [(one["from"], one["to"], one["kind"]) for one in active] == [("ds-flash@1", "ds-flash@2", "rollout")]
    generations = {dict(labels)["generation"] for labels in page["denv_pool_replicas_wanted"][1]}
    assert len(generations) >= 2 and "" not in generations


@pytest.mark.django_db
def test_the_page_is_for_tokens_and_shows_what_their_owners_may_see(settings: Any) -> None:
    Demo().first()
    settings.DEFAULT_ROLE = "none"
    nobody = Client().get("/metrics")
    assert nobody.status_code == 401 and nobody.json()["code"] == "not-authenticated"
    other = User.objects.create(username="eve")
    Model.objects.create(name="other")
    Grant.objects.create(user=other, model="other", role="viewer")
    page = _read(Client(headers={"authorization": f"Bearer {token_create(user=other)}"}).get("/metrics").content.decode())
    assert "denv_stage_state" not in page and not any(dict(labels).get("stage") for _, found in page.values() for labels in found)


def _expressions(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for note in board["annotations"]["list"]:
        yield note["name"], note["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]


async def test_every_metric_of_the_dashboard_and_of_the_reference_is_exposed(tmp_path: Path) -> None:
    served = _read(await _router_page(tmp_path))
    _fitting(served)
    exposed = {name: kind for name, (kind, _) in served.items()} | {PREFIX + name: kind for name, (kind, _) in FAMILIES.items()}
    assert {f"denv_router_{name}" for name in HELP} == {re.sub(r"_(total|seconds)$", "", name) for name in served}
    asked = set()
    for title, expression in _expressions(json.loads(DASHBOARD.read_text("utf-8"))):
        for name in re.findall(r"\bdenv_[a-z0-9_]+", expression):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            kind = exposed.get(name) or exposed.get(base)
            assert kind is not None and (name in exposed) == (kind is not Kind.HISTOGRAM), f"{title}: {name} is not exposed"
            assert (kind is Kind.GAUGE) or re.search(rf"rate\({name}\b", expression), f"{title}: {name} only grows"
            asked.add(base)
    wanted = {f"denv_router_{metric.value.replace('-', '_')}_seconds" for metric in Metric} | {
        *("denv_router_errors_by_class_total", "denv_router_prefill_queue", "denv_router_kv_use_ratio", "denv_router_kv_failed_total"),
        *("denv_rollout_evidence_ratio", "denv_stage_alarms_breached", "denv_loop_age_seconds", "denv_outbox_oldest_age_seconds"),
    }
    assert wanted <= asked
    documented = set(re.findall(r"`(denv_[a-z0-9_]+)`", REFERENCE.read_text("utf-8")))
    assert documented == exposed.keys()


def test_the_dashboard_is_one_that_grafana_takes_and_each_panel_says_what_it_shows() -> None:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    assert board["schemaVersion"] >= 36 and board["uid"] == "denv" and "id" not in board
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "stage"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] and panel["description"].endswith("."), panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]
