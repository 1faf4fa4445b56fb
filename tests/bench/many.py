"""Five hundred rollouts in one database: one is brought to its canary by the real services, and its rows are copied."""

from __future__ import annotations

import copy
import json
import os
import time
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

_STRIDE = 100_000  # between the numbers of one copy's rows and the next one's
_OWN = "ds-flash"


def setup() -> None:
    """Servers and tables of its own."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0, interactive=False)


def tick_s(count: int, ticks: int = 5) -> tuple[float, float]:
    """Seconds that a look at so many rollouts takes, each in a hold with new figures: (by the clock, of this process's core); medians."""
    from releases.models import Rollout
    from releases.reconcile import reconcile
    from tests.integration.rollouts_world import Demo

    demo = Demo()
    demo.first()
    demo.release(block=32)
    for _ in range(40):
        demo.tick(2.0, requests=20)
        if demo.rollout().data["weight_bp"] == 1000:
            break
    rows = rows_of_demo()
    for number in range(1, count):
        copy_rows(rows, number)
    assert Rollout.objects.exclude(state__in=Rollout.ENDED).count() == count
    now, took = demo.fleets.now, []
    for _ in range(ticks):
        now += timedelta(seconds=1)
        _figures(now)
        wall_s, core_s = time.perf_counter(), time.process_time()
        look = reconcile(now)
        took.append((time.perf_counter() - wall_s, time.process_time() - core_s))
        assert look.failures == 0
    assert Rollout.objects.filter(state=Rollout.State.ROLLING).count() == count
    return sorted(took)[ticks // 2]


def rows_of_demo() -> list[dict[str, Any]]:
    from django.core import serializers

    from fleets.models import Rank, Replica, Router, RouteState, Unit
    from metrics.models import AlarmState, IngestedReport, Window
    from releases.models import Model, Release, Rollout, Stage

    kinds = (Model, Release, Stage, Rollout, Unit, Replica, Rank, RouteState, Router, Window, IngestedReport, AlarmState)
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        rows += json.loads(serializers.serialize("json", kind._default_manager.all()))
    return rows


_LINKS = {"stage", "model", "release", "previous", "from_release", "to_release"}


def copy_rows(rows: Sequence[dict[str, Any]], number: int) -> None:
    """The rows again, under another model's name."""
    from django.core import serializers

    names = [
        row["pk"] for row in rows if isinstance(row["pk"], str) and row["model"].split(".")[1] in {"unit", "replica", "rank", "rollout"}
    ]
    copies = copy.deepcopy(list(rows))
    for row in copies:
        fields = row["fields"]
        if isinstance(row["pk"], int):
            row["pk"] += number * _STRIDE
        for link in _LINKS & fields.keys():
            if isinstance(fields[link], int):
                fields[link] += number * _STRIDE
        if row["model"] == "fleets.rank":
            fields["port"] += number * 64
        if row["model"] in {"fleets.router"}:
            row["pk"] += f"-{number}"
        if row["model"] == "metrics.ingestedreport":
            fields["source"] += f"-{number}"
    text = json.dumps(copies).replace(f'"{_OWN}', f'"m{number}').replace(f" {_OWN}", f" m{number}")
    for name in names:
        text = text.replace(f'"{name}"', f'"{name[:-4]}{number:04x}"')
    for found in serializers.deserialize("json", text):
        found.object.save_base(raw=True, force_insert=True)


def _own(row: Any) -> None:
    """More requests in a window, as many as no two stages have; a few of them are slow."""
    own = zlib.crc32(row.stage.encode())
    row.alarms = {
        name: {**count, "n": count["n"] + 3 + own % 997, "k": count["k"] + (own % 4 if name == "ttft-p99" else 0)}
        for name, count in row.alarms.items()
    }


def _figures(now: Any) -> None:
    """A second of traffic on every stage, of its own on each: what was worked out for one is of no use for another."""
    from metrics.models import IngestedReport, Window
    from metrics.selectors.windows import floor_to

    newest: dict[tuple[str, str], Window] = {}
    for row in Window.objects.order_by("start_at"):
        newest[row.stage, row.unit] = row
    for row in newest.values():
        row.pk, row.start_at = None, floor_to(now, 10)
        _own(row)
    fresh = [row for row in newest.values() if not Window.objects.filter(stage=row.stage, start_at=row.start_at).exists()]
    if fresh:
        Window.objects.bulk_create(fresh)
    else:
        for row in Window.objects.filter(start_at=floor_to(now, 10)):
            _own(row)
            row.save(update_fields=["alarms"])
    IngestedReport.objects.update(received_at=now)
