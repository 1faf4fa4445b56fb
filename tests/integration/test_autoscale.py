"""Scaling by the traffic on the real reconcilers: one look after another on a clock that only the test moves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from fleets import services as fleets
from fleets.domain.protocol import UnitGauge
from fleets.domain.scaling.types import Knob
from fleets.selectors import router_table
from metrics.domain.histogram import Histogram
from metrics.domain.types import Metric, Route, SeriesDelta, SeriesKey
from metrics.selectors import events_view
from releases.models import StageScale
from releases.selectors.scaling import scale_view
from releases.services.autoscale import stage_look
from releases.services.releases import release_create
from releases.services.scaling import stage_scale
from tests.integration.rollouts_world import STAGE, Demo, release_yaml

pytestmark = pytest.mark.django_db

RANGE = "{ min: 1, max: 3 }"


class Traffic:
    """A demo stage of 1P1D whose router tells of requests, ten seconds at a time."""

    def __init__(self, *, scaling: str = "auto", gpus: int = 24) -> None:
        self.demo = Demo(domains=2, gpus=gpus)
        text = release_yaml(units=1, prefills=RANGE, decodes=RANGE).replace(
            "    replicas: 1\n", f"    replicas: 1\n    scaling: {scaling}\n", 1
        )
        release_create(yaml=text, actor="ada", via="cli")
        self.demo.settle()
        self.demo.tick(11.0 - self.demo.fleets.now.timestamp() % 10)  # figures are kept in windows of ten seconds by the clock
        assert self.demo.stage().release is not None

    def go_on(self, *, seconds: int = 10, prompts: int = 0, tokens: int = 4000, ttft_s: float = 0.4, queue: int = 0) -> None:
        """So much time with so many prompts, each of so many tokens, that waited so long."""
        for _ in range(seconds // 5):
            self.report(prompts // 2, tokens, ttft_s, queue)
            self.demo.tick(5.0)

    def pass_calmly(self, *, seconds: int) -> None:
        """The same with few prompts, and nothing but the looks: a long time costs little."""
        for _ in range(seconds // 9):
            self.report(4)
            self.demo.fleets.now += timedelta(seconds=9)
            stage_look(stage_id=self.demo.stage().pk, now=self.demo.fleets.now)

    def report(self, prompts: int, tokens: int = 4000, ttft_s: float = 0.4, queue: int = 0) -> None:
        """One report of the router."""
        demo = self.demo
        demo.seq += 1
        table = router_table(stage=STAGE)
        unit = table.units[0]
        series = SeriesDelta(
            key=SeriesKey(STAGE, unit.unit, unit.prefill_release, unit.decode_release, Route.REMOTE),
            counters={"requests": prompts, "tokens.in": prompts * tokens, "tokens.uncached": prompts * tokens, "tokens.out": prompts * 20},
            histograms={
                metric: _histogram(value, prompts).to_data()
                for metric, value in (
                    (Metric.TTFT, ttft_s),
                    (Metric.PREFILL, ttft_s * 0.8),
                    (Metric.QUEUE, ttft_s * 0.1),
                    (Metric.ITL, 0.01),
                )
            },
        )
        demo.gauges = (UnitGauge(unit.unit, prefill_queue=queue, prefill_inflight=1, decode_inflight=3),)
        demo.fleets.router(seq=demo.seq, generation=table.generation, series=(series,) if prompts else (), gauges=demo.gauges)

    def count(self, knob: str) -> int:
        view = scale_view(stage=STAGE)
        return next(one.in_force for one in view.knobs if one.knob == knob)


def _histogram(value: float, count: int) -> Histogram:
    histogram = Histogram()
    histogram.record_all([value] * count)
    return histogram


def test_prefill_follows_its_load_up_at_once_and_down_after_the_peaks_are_over() -> None:
    traffic = Traffic()
    traffic.go_on(seconds=20, prompts=4)
    assert traffic.count("prefill") == 1
    traffic.go_on(seconds=40, prompts=120, ttft_s=3.0, queue=30)
    assert traffic.count("prefill") == 3 and traffic.count("decode") == 1
    assert traffic.demo.units()[0].shape == "3P1D", "no release, no restart"
    view = scale_view(stage=STAGE)
    decided = next(event for event in view.decisions if event.kind == "scale.decided")
    assert "prompt tokens/s expected" in decided.sentence and "prefill 1 ->" in " ".join(event.sentence for event in view.decisions)
    assert decided.evidence["signals"]["ttft_p99_s"] == pytest.approx(3.0, rel=0.02)
    traffic.demo.fleets.idle()
    traffic.pass_calmly(seconds=180)
    assert traffic.count("prefill") == 3, "peaks of the last ten minutes are kept room for"
    traffic.pass_calmly(seconds=590)
    assert traffic.count("prefill") == 1
    traffic.go_on(seconds=20)
    assert traffic.demo.units()[0].shape == "1P1D" and {"replica.draining", "replica.drained"} <= set(traffic.demo.kinds())


def test_what_a_person_set_stays_until_it_is_given_back() -> None:
    traffic = Traffic()
    stage_scale(stage=STAGE, actor="ada", via="cli", counts={Knob.PREFILL: 1})
    traffic.go_on(seconds=20, prompts=120, ttft_s=3.0, queue=30)
    assert traffic.count("prefill") == 1
    stage_scale(stage=STAGE, actor="ada", via="cli", auto=True)
    traffic.go_on(seconds=30, prompts=120, ttft_s=3.0, queue=30)
    assert traffic.count("prefill") == 3


def test_advice_is_written_down_and_not_done() -> None:
    traffic = Traffic(scaling="advisory")
    traffic.go_on(seconds=40, prompts=120, ttft_s=3.0, queue=30)
    view = scale_view(stage=STAGE)
    assert view.ratio == "1P1D" and view.ratio_advised in {"2P1D", "3P1D"}
    assert traffic.demo.units()[0].shape == "1P1D"
    advice = [event for event in events_view(stage=STAGE, limit=500) if event.kind == "scale.advised"]
    assert advice and len(advice) <= 3, "said once, and not at every look"
    assert not [event for event in view.decisions if event.kind == "scale.decided"]


def test_nothing_moves_while_no_router_reports_and_the_local_limit_reaches_the_routers() -> None:
    traffic = Traffic()
    traffic.go_on(seconds=20, prompts=4)
    traffic.demo.live = False
    for _ in range(4):
        traffic.demo.tick(5.0)
    scale = StageScale.objects.get()
    assert "nothing is changed" in scale.advised_why and traffic.count("prefill") == 1
    traffic.demo.live = True
    traffic.go_on(seconds=5, prompts=4, ttft_s=1.6, queue=2)
    view = scale_view(stage=STAGE)
    assert view.local_prefill_below > 1000, view.why
    assert router_table(stage=STAGE).conditional.local_prefill_below == view.local_prefill_below
    assert traffic.count("prefill") == 1, "the limit moves before replicas do"


def test_never_more_gpus_than_the_domain_has() -> None:
    traffic = Traffic(gpus=12)
    traffic.go_on(seconds=40, prompts=400, ttft_s=9.0, queue=90)
    assert (traffic.count("prefill"), traffic.count("decode")) == (2, 1)
    assert not traffic.demo.units()[0].failed


def test_a_look_that_dies_before_its_commit_has_done_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic()
    traffic.go_on(seconds=20, prompts=4)
    stage, before = traffic.demo.stage(), StageScale.objects.values().get()
    real = fleets.unit_scale

    def dies_after(**fields: Any) -> object:
        real(**fields)
        raise RuntimeError("killed between the effect and the commit")

    monkeypatch.setattr(fleets, "unit_scale", dies_after)
    traffic.report(prompts=400, ttft_s=9.0, queue=90)
    later = traffic.demo.fleets.now + timedelta(seconds=10)
    with pytest.raises(RuntimeError), transaction.atomic():
        stage_look(stage_id=stage.pk, now=later)
    assert StageScale.objects.values().get() == before and traffic.demo.units()[0].shape == "1P1D"
    assert "scale.decided" not in traffic.demo.kinds()
    monkeypatch.undo()
    assert stage_look(stage_id=stage.pk, now=later) == 1
    assert stage_look(stage_id=stage.pk, now=later) == 0, "the same again changes nothing"
    assert traffic.demo.units()[0].shape == "3P1D" and traffic.demo.kinds().count("scale.decided") == 1
