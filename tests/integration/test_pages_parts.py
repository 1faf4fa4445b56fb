"""The pictures' arithmetic: sparklines, gauges, maps, figures, diffs."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from denvweb.cli.rollout import rollout
from frontend import attention, charts, diffs, evidence, gpumap, spark, stagecharts, timerange, words
from frontend.cells import line, metric_cell
from frontend.charts import Limit, Line, Mark
from frontend.generations import Count, generations
from metrics.domain.glance import POINTS, GlanceView, Values
from metrics.domain.views import EventView
from releases.domain.views import StageView
from tests.integration import page_samples as samples


def _points(path: str) -> list[tuple[int, int]]:
    """Where a line of `spark` goes."""
    x, y, points = 0, 0, []
    for letter, numbers in re.findall(r"([Mlh])([-\d ]+)", path):
        by = [int(number) for number in re.findall(r"-?\d+", numbers)]
        if letter == "M":
            x, y = by
        else:
            x, y = x + by[0], y + (by[1] if letter == "l" else 0)
        points.append((x, y))
    return points


def test_the_limit_stands_at_one_height() -> None:
    for limit in (0.06, 1.5, 60.0):
        assert _points(spark.paths([limit, limit], limit)[0]) == [(0, spark.LIMIT_Y), (1, spark.LIMIT_Y)]


def test_a_rollout_that_ended_without_a_request_has_no_evidence_to_show() -> None:
    verdicts = samples.held_stage().rollout.verdicts  # type: ignore[union-attr]  # there is one
    unasked = [replace(verdict, n=0) for verdict in verdicts]
    assert evidence.table(unasked, ended=True) == ()
    assert len(evidence.table(unasked, ended=False)) == len([verdict for verdict in verdicts if not verdict.synthetic])
    assert len(evidence.table(verdicts, ended=True)) == len(verdicts)


def test_a_gap_in_the_figures_is_a_gap_in_the_line() -> None:
    drawn = spark.draw([None, 0.1, 0.2, None, 0.2, 0.1, None], [], 1.0, "x")
    assert [x for x, _ in _points(drawn.base)] == [1, 2, 4, 5]
    assert drawn.base.count("M") == drawn.area.count("z") == 2
    assert not drawn.base_over
    assert drawn.svg.startswith('<svg class="spark" viewBox="0 0 6 128"')


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=50), st.floats(1e-3, 1e3))
def test_a_line_stays_in_its_box_and_goes_through_every_figure(values: list[float | None], limit: float) -> None:
    points = _points(spark.paths(values, limit)[0])
    assert all(0 <= x <= max(1, len(values)) and spark.TOP_Y <= y <= spark.HEIGHT for x, y in points)
    heights = dict(points)
    for index, value in enumerate(values):
        if value is not None:
            meant = spark.HEIGHT - value / limit * (spark.HEIGHT - spark.LIMIT_Y)
            assert abs(heights[index] - max(spark.TOP_Y, meant)) <= 0.51


def test_what_is_typed_is_text_in_a_figure_of_the_table() -> None:
    (head, *_) = samples.heads()
    cell = metric_cell(replace(head, stage='<b>"'), GlanceView(), "ttft", "", "")
    assert "&lt;b&gt;&quot; TTFT p99: no figures now" in cell.html and "<b>?</b>" in cell.html


@given(st.floats(0, 1e12), st.floats(2, 1e4))
def test_the_gauge_passes_its_mark_exactly_when_the_alarm_trips(odds: float, trips_at: float) -> None:
    x = evidence.gauge_x(odds, trips_at)
    assert 2 <= x <= evidence.GAUGE_WIDTH
    if odds > trips_at * 1.001:
        assert x > evidence.TRIP_X
    if odds < trips_at * 0.999:
        assert x < evidence.TRIP_X


def test_one_to_one_stands_at_the_dotted_mark() -> None:
    assert evidence.gauge_x(1, 300) == evidence.EVEN_X
    assert evidence.gauge_x(300, 300) == evidence.TRIP_X


def test_a_map_has_a_column_a_node_and_hatches_what_is_on_trial() -> None:
    _, canary = samples.units()
    picture = gpumap.draw(samples.nvl72("d02", canary), {"u-2": gpumap.Tenant("ds-flash@8", canary=True)})
    assert picture.viewbox == "-1 -1 288 64"
    assert picture.svg.count('class="g Pc"') == 8
    assert picture.svg.count('class="g Dc"') == 64
    assert [f">{mark}</text>" in picture.svg for mark in ("P1", "P2", "D1")] == [True, True, True]
    assert picture.canary
    assert picture.tile == "c"


def test_a_lost_node_is_a_crossed_column_and_said() -> None:
    picture = gpumap.draw(samples.nvl72("d03", None, lost=6), {})
    assert picture.svg.count('class="x"') == 4
    assert picture.troubles == "n07 lost; n10 cordoned"
    assert picture.tone == "bad"


def test_figures_name_tokens_and_draw_marks_and_limits() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    at = [now + timedelta(minutes=i) for i in range(3)]
    lines = [Line("release 7", "base", [1.0, None, 2.0]), Line("release 8", "canary", [None, None, 9.0], dashed=True)]
    figure = charts.figure(at, lines, limit=Limit(5, "alarm 5 ms"), marks=[Mark("A", at[1], "x"), Mark("B", now - timedelta(hours=1), "y")])
    assert [trace["line"]["color"] for trace in figure["data"]] == ["@base", "@canary"]
    assert figure["data"][1]["line"]["dash"] == "5px,3px"
    assert [text["text"] for text in figure["layout"]["annotations"]] == ["A", "alarm 5 ms"]
    assert figure["layout"]["yaxis"]["range"][1] > 9


def test_marks_that_would_stand_on_each_other_share_a_text() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    at = [now + timedelta(minutes=i) for i in range(61)]
    marks = [Mark(letter, now + timedelta(minutes=minute), "x") for letter, minute in zip("ABCD", (10, 40, 41, 42.5), strict=True)]
    layout = charts.figure(at, [Line("a", "base", [1.0] * 61)], marks=marks)["layout"]
    assert [(text["text"], text["x"][11:16]) for text in layout["annotations"]] == [("A", "00:10"), ("B–D", "00:41")]
    assert len(layout["shapes"]) == 4


def test_a_limit_far_above_does_not_flatten_what_is_measured_when_it_is_advice() -> None:
    at = [datetime(2026, 1, 1, tzinfo=UTC)]
    soft = charts.figure(at, [Line("a", "base", [1.0])], limit=Limit(90, "near 90", soft=True))
    hard = charts.figure(at, [Line("a", "base", [1.0])], limit=Limit(90, "alarm 90"))
    assert soft["layout"]["yaxis"]["range"][1] < 2
    assert hard["layout"]["yaxis"]["range"][1] > 90


def test_a_diff_says_plus_and_minus_with_line_numbers() -> None:
    lines = diffs.compare("a\nb\nc\n", "a\nB\nc\n")
    assert [(line.sign, line.old, line.new, line.text) for line in lines] == [
        (" ", 1, 1, "a"),
        ("-", 2, None, "b"),
        ("+", None, 2, "B"),
        (" ", 3, 3, "c"),
    ]
    assert diffs.compare("a\n", "a\n") == ()


def test_words_of_quantities() -> None:
    assert [words.odds(x) for x in (0, 0.06, 2.1, 340, 8.6e6, 1e12)] == ["under 0.01", "0.06", "2.1", "340", "8.6 M", "over 1,000 M"]
    assert [words.share(x) for x in (0.1, 0.025, 1)] == ["10%", "2.5%", "100%"]


def test_a_span_says_seconds_where_minutes_would_not_tell_its_ends_apart() -> None:
    now = datetime(2026, 1, 2, 9, 40, tzinfo=UTC)
    at = datetime(2026, 1, 2, 9, 24, 5, tzinfo=UTC)
    assert words.span(at, at + timedelta(minutes=13), now) == "09:24 to 09:37"
    assert words.span(at, at + timedelta(seconds=9), now) == "09:24:05 to 09:24:14"
    assert words.span(at - timedelta(days=1), at - timedelta(days=1, seconds=-9), now) == "1 Jan 09:24:05 to 09:24:14"


def test_the_verdict_is_about_people_first() -> None:
    stages, fleets = samples.stages(), samples.fleets()
    needs, moves = attention.needs_person(stages, fleets), attention.moving(stages)
    verdict = attention.verdict(stages, needs, moves)
    assert verdict.bad == "llama-70b/prod-us breached and is rolling back."
    assert verdict.rest == "2 more things wait for a person."
    calm = [stage for stage in stages if stage.state == "steady"]
    assert attention.verdict(calm, [], []).rest == "Everything is steady"
    assert attention.verdict([], [], []).rest == "Nothing is released yet"


def test_a_broken_alarm_between_rollouts_needs_a_person_and_is_said_first() -> None:
    stages = [samples.broken_stage()]
    (item,) = attention.needs_person(stages, [])
    assert (item.title, item.badge.tone, item.stage) == ("ttft-p99 is over its limit", "bad", "llama-70b/staging")
    assert attention.verdict(stages, [item], []).bad == "llama-70b/staging breaks its limit on ttft-p99."


def test_what_drains_is_neither_wanted_nor_ready_and_a_share_that_is_not_seen_is_told() -> None:
    stage = samples.rolling_stage()
    one, two = stage.units
    base, trial = generations(stage)
    assert (base.release, trial.canary, base.off, base.counts[1]) == ("ds-flash@7", True, False, Count("prefill", 2, 2, 0))
    base, trial = generations(replace(stage, units=(replace(one, stopping=True, weight_seen=0.5), two)))
    assert [(count.what, count.wanted, count.ready, count.draining) for count in base.counts] == [
        ("units", 0, 0, 1),
        ("prefill", 0, 0, 2),
        ("decode", 0, 0, 1),
    ]
    assert base.off and not trial.off
    assert generations(replace(stage, units=(replace(one, weight_seen=None), two)))[0].seen is None


def test_a_unit_that_kept_an_earlier_prefill_counts_for_its_release() -> None:
    one: Values = (None,) * (POINTS - 2)
    glance = GlanceView({"ds-flash@7": {"ttft.p99": (*one, 1.0, 1.0)}, "ds-flash@7+ds-flash@8": {"ttft.p99": (*one, None, 2.0)}})
    assert line(glance, "ttft.p99", "ds-flash@7")[-2:] == (1.0, 1.0)
    assert line(glance, "ttft.p99", "ds-flash@8")[-2:] == (None, 2.0)
    assert set(line(glance, "ttft.p99", "ds-flash@9")) == {None}


def test_the_command_says_where_the_page_of_a_rollout_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = samples.rolling_stage()
    asked = SimpleNamespace(
        access=SimpleNamespace(url="https://denv.example.com"), get=lambda path, into: {StageView: stage}.get(into, stage.rollout)
    )
    monkeypatch.setattr("denvweb.cli.rollout.Client", lambda: asked)
    shown = CliRunner().invoke(rollout, ["show", stage.stage])
    assert shown.output.rstrip().endswith("page: https://denv.example.com/rollouts/ro-ds-flash-prod-us"), shown.output


def test_rollouts_alarms_and_scaling_are_lettered_on_the_charts_in_the_order_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    kinds = ("alarm.breached", "scale.decided", "scale.advised", "unit.ready", "rollout.started")  # newest first
    told = [EventView(9 - i, now - timedelta(minutes=i), kind, "info", kind, "system", "system") for i, kind in enumerate(kinds)]
    monkeypatch.setattr("frontend.stagecharts.events_view", lambda **_: tuple(told))
    marks = stagecharts.marks("m/s", timerange.fixed(now - timedelta(hours=1), now, now))
    assert [(mark.letter, mark.text) for mark in marks] == [("A", "rollout.started"), ("B", "scale.decided"), ("C", "alarm.breached")]
