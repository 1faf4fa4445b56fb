"""Two hundred stages and a month of their figures, written by few statements."""

from __future__ import annotations

import json
import os
import random
from datetime import datetime, timedelta

from django.db import connection
from django.utils import timezone

STAGES = 200
ROLLING = 20  # of them, at their canary
DAYS = 30
DOMAINS = 1000
_AHEAD = timedelta(minutes=20)  # rows that the clock has yet to reach, so that the newest figures are there whenever a page is asked for
_FINE = timedelta(hours=2)
_GAUGES_FINE = timedelta(hours=25)  # of the stage whose charts are asked for: a day, as denv keeps them
SEEN = "ds-flash/prod-us"
_EVENTS_A_DAY = 10
_KINDS = 16  # different histograms


def seed() -> None:
    """Stages by the real services and copies of their rows; figures, gauges, events and a large fleet by statements."""
    from tests.bench.many import copy_rows, rows_of_demo
    from tests.integration.rollouts_world import Demo

    demo = Demo()
    demo.first()
    demo.release(block=32)
    demo.through(until={"succeeded"})
    steady = rows_of_demo()
    demo.release(block=64)
    for _ in range(40):
        demo.tick(2.0, requests=20)
        if demo.rollout().data["weight_bp"] == 1000:
            break
    rolling = rows_of_demo()
    for number in range(1, STAGES):
        copy_rows(rolling if number < ROLLING else steady, number)
    figures(timezone.now())
    large_fleet()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE fleets_router SET last_seen_at = now() + interval '1 day'")
        cursor.execute("UPDATE metrics_ingestedreport SET received_at = now() + interval '1 day'")
        cursor.execute("ANALYZE")


def _shapes() -> list[tuple[str, str]]:
    """What sixty requests in one window look like, in the form that rows keep: histograms, and TTFT's phases."""
    from metrics.domain.histogram import Histogram
    from metrics.domain.types import Metric
    from metrics.domain.window import Figures

    dice, kept = random.Random(6), []
    medians = {
        Metric.TTFT: 0.6,
        Metric.ITL: 0.03,
        Metric.E2E: 9.0,
        Metric.QUEUE: 0.02,
        Metric.PREFILL: 0.4,
        Metric.KV_TRANSFER: 0.05,
        Metric.FIRST_STEP: 0.04,
    }
    for _ in range(_KINDS):
        figures = Figures()
        for metric, median_s in medians.items():
            histogram: Histogram = figures.histogram(metric.value)
            for _ in range(60):
                histogram.record(median_s * dice.lognormvariate(0, 0.4))
        phases = (0.02, 0.4, 0.05, 0.04)
        figures.split.record_all(tuple(median_s * dice.lognormvariate(0, 0.4) for median_s in phases) for _ in range(60))  # type: ignore[misc]  # of four
        _, _, histograms, split = figures.kept()
        kept.append((json.dumps(histograms), split))
    return kept


def figures(now: datetime) -> None:
    """5-minute rows of a month, 10-second rows of two hours, gauges beside them (a day's, of one stage), and the journal's month."""
    from metrics.selectors.windows import floor_to

    counters = json.dumps(
        {
            "requests": 60,
            "errors": 0,
            "tokens.in": 60_000,
            "tokens.out": 12_000,
            "tokens.cached": 20_000,
            "tokens.uncached": 40_000,
            "tokens.remote": 50_000,
            "cancelled": 1,
            "reason.long": 50,
            "goodput.of": 60,
            "goodput.met": 59,
        }
    )
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE metrics_window SET UNLOGGED")
        cursor.execute("DELETE FROM metrics_window")
        cursor.execute("CREATE TEMP TABLE shapes (number int, histograms jsonb, split text)")
        cursor.executemany("INSERT INTO shapes VALUES (%s, %s, %s)", [(number, *shape) for number, shape in enumerate(_shapes())])
        whole = floor_to(now, 300)
        spans = (
            (300, whole - timedelta(days=DAYS), whole - timedelta(seconds=300)),
            (10, whole - _FINE, whole + _AHEAD),
        )
        for seconds, since, until in spans:
            cursor.execute(
                """
                INSERT INTO metrics_window (stage, unit, prefill_release, decode_release, route, probe, seconds, start_at, settled,
                                            counters, alarms, histograms, split)
                SELECT u.stage, u.id, u.release, u.release, 'remote', false, %(s)s, at, %(s)s = 10 AND at < %(now)s - interval '10 min',
                       %(counters)s, '{}', shapes.histograms, shapes.split
                FROM fleets_unit u, shapes,
                     generate_series(%(since)s::timestamptz, %(until)s::timestamptz, make_interval(secs => %(s)s)) AS at
                WHERE u.desired <> 'gone' AND (u.slot = 1 OR at > %(now)s - interval '2 hours')
                  AND shapes.number = (extract(epoch FROM at)::bigint / %(s)s + u.slot) %% %(kinds)s
                """,
                {"s": seconds, "since": since, "until": until, "now": now, "counters": counters, "kinds": _KINDS},
            )
        cursor.execute(
            """
            INSERT INTO metrics_gaugewindow (stage, unit, start_at, received_at, values)
            SELECT u.stage, u.id, at, at, ('{"r:kv_use": 0.6, "r:prefill_queue": 3, "r:prefill_inflight": 4, "r:decode_inflight": 40,
                "r:ejected": 0, "engines:kv_use": 0.6, "engines:running": 40, "engines:waiting": 0, "engines:prefix_hit": 0.3,
                "engines:gpus": 72, "engines:counted_by": 1, "engines:preemptions_total": 3, "engines:kv_expired_total": 0,
                "engines:kv_transfers_total": ' || n::text || ', "engines:kv_transfer_bytes_total": ' || (n * 1.09e8)::text || '}')::jsonb
            FROM fleets_unit u, generate_series(%s::timestamptz, %s, interval '10 s') AS at,
                 LATERAL (SELECT extract(epoch FROM at)::bigint %% 1000000 AS n) AS counted
            WHERE u.desired <> 'gone' AND (u.stage = %s OR at > %s) ON CONFLICT DO NOTHING
            """,
            [whole - _GAUGES_FINE, whole + _AHEAD, SEEN, whole - _FINE],
        )
        cursor.execute(
            """
            INSERT INTO metrics_event (at, kind, level, sentence, actor, via, model, stage,
                                       fleet, rollout, release, evidence, proof, request_id, digest)
            SELECT at, 'rollout.step', 'info', 'shifted 10%% of the traffic to the canary', 'system', 'system', m.name,
                   m.name || '/' || s.name, '', '', '', '{}', '', '', ''
            FROM generate_series(%s::timestamptz, %s, make_interval(secs => 86400.0 / %s)) AS at, releases_stage s
            JOIN releases_model m ON m.id = s.model_id ORDER BY at
            """,
            [now - timedelta(days=DAYS), now, _EVENTS_A_DAY],
        )


def large_fleet() -> None:
    """A fleet of a thousand domains of eight GPUs."""
    from fleets.models import Domain, Fleet, Node

    template = Node.objects.order_by("pk")[0]
    fleet = Fleet.objects.get(pk=template.domain.fleet_id)
    fleet.pk, fleet.name, fleet.gpu_kind = "h200-many", "h200-many", "H200"
    fleet.save(force_insert=True)
    domains = [Domain(name=f"h200-many/d{number:04}", fleet=fleet) for number in range(1, DOMAINS + 1)]
    Domain.objects.bulk_create(domains)
    same = {field.attname: getattr(template, field.attname) for field in Node._meta.concrete_fields}
    nodes = []
    for domain in domains:
        name = domain.name.replace("/", "-") + "-n01"
        own = {"name": name, "domain_id": domain.pk, "credential_id": name, "last_report_at": timezone.now() + timedelta(days=1)}
        nodes.append(Node(**{**same, **own}))
    Node.objects.bulk_create(nodes)


def seeded() -> bool:
    """Whether the database that DATABASE_URL names has it all from a run before."""
    from releases.models import Stage

    return Stage.objects.count() >= STAGES


def setup() -> None:
    """Servers and tables of its own."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0, interactive=False)
