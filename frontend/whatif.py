"""The what-if page: its sliders, its sentence, and TTFT and ITL against load for two shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from fleets.domain.simulator.arrivals import Process
from fleets.domain.simulator.types import Limits, StageShape
from fleets.domain.sizing.types import Need
from fleets.domain.sizing.whatif import At, Curve, WhatIf
from frontend import charts
from frontend.charts import Chart, Key, Limit, Line, Say, rounded
from releases.domain.serving import process_of
from releases.selectors.ground import Ground

_ELSE = process_of(10.0, 4000, 300, 0.0)  # where nothing was measured
_TIMES = 4  # a slider goes up to so many times what was measured


@dataclass(frozen=True, slots=True)
class Slider:
    """One number of the form."""

    name: str
    label: str
    unit: str
    value: float
    least: float
    most: float
    step: float


def sliders(ground: Ground, given: Mapping[str, str]) -> tuple[Slider, ...]:
    """The form as it stands: what was given, else what was measured; what is no number or out of range is taken back into it."""
    process, limits = ground.traffic or _ELSE, ground.limits
    return (
        _slider(given, "rate", "Requests", "a second", process.rate_per_s),
        _slider(given, "isl", "Prompt", "tokens", process.input_tokens, whole=True),
        _slider(given, "osl", "Answer", "tokens", process.output_tokens, whole=True),
        _fixed(given, Slider("hit", "Prompt that is cached", "%", process.prefix_hit * 100, 0, 95, 1)),
        _fixed(given, Slider("ttft", "TTFT p99, limit", "ms", (limits.ttft_s or 2.0) * 1000, 50, 20_000, 50)),
        _fixed(given, Slider("itl", "ITL p99, limit", "ms", (limits.itl_s or 0.05) * 1000, 2, 400, 1)),
    )


def _slider(given: Mapping[str, str], name: str, label: str, unit: str, measured: float, *, whole: bool = False) -> Slider:
    """Up to a few times what was measured, in steps that a hand can hit."""
    step = _step(measured, whole)
    most = max(step * 20, round(measured * _TIMES / step) * step)
    return _fixed(given, Slider(name, label, unit, measured, step, most, step))


def _step(measured: float, whole: bool) -> float:
    for step in (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 50, 100, 500):
        if measured / step <= 60 and (step >= 1 or not whole):
            return step
    return 1000


def _fixed(given: Mapping[str, str], slider: Slider) -> Slider:
    try:
        wanted = float(given.get(slider.name, ""))
    except ValueError:
        wanted = slider.value
    if not isfinite(wanted):
        wanted = slider.value
    steps = round((min(slider.most, max(slider.least, wanted)) - slider.least) / slider.step)
    return replace(slider, value=min(slider.most, float(f"{slider.least + steps * slider.step:.6g}")))


def need_of(form: Sequence[Slider]) -> Need:
    """The traffic and limits of a form."""
    at = {slider.name: slider.value for slider in form}
    process: Process = process_of(at["rate"], at["isl"], at["osl"], at["hit"] / 100)
    return Need(process, Limits(at["ttft"] / 1000, at["itl"] / 1000))


@dataclass(frozen=True, slots=True)
class Row:
    """One shape at the load asked for."""

    name: str
    shape: str
    gpus: int
    at: At
    carries_per_s: float


def rows(found: WhatIf) -> tuple[Row, ...]:
    """Both shapes, at the load asked for."""
    both = (("in force", found.present), ("advised", found.advised))
    return tuple(_row(name, curve) for name, curve in both if curve is not None)


def _row(name: str, curve: Curve) -> Row:
    asked = next(point for point in curve.at if point.rate_per_s == curve.asked_per_s)
    return Row(name, shape_text(curve.shape), curve.shape.gpus, asked, curve.carries_per_s)


def shape_text(shape: StageShape) -> str:
    """`2 units of 2P1D on 144 GPUs (prefill 4, decode 64 a replica)`."""
    sizes = ", ".join(f"{pool.role.value} {pool.gpus}" for pool in shape.pools)
    return f"{shape.text} on {shape.gpus:,} GPUs ({sizes} a replica)"


def figures(found: WhatIf, need: Need) -> list[Chart]:
    """TTFT and ITL against load."""
    limits = need.limits
    return [
        _chart("ttft", "TTFT against load", found, limits.ttft_s, lambda at: (at.ttft_p50_s, at.ttft_p99_s)),
        _chart("itl", "ITL against load", found, limits.itl_s, lambda at: (at.itl_p50_s, at.itl_p99_s)),
    ]


def stubs() -> list[Chart]:
    """Empty places."""
    return [Chart(name, f"{name.upper()} against load", Say(""), (), big=True) for name in ("ttft", "itl")]


def _chart(name: str, title: str, found: WhatIf, limit_s: float | None, of: Callable[[At], tuple[float | None, float | None]]) -> Chart:
    loads = [point.rate_per_s for point in found.present.at]
    lines = []
    for label, colour, curve in (("in force", "base", found.present), ("advised", "canary", found.advised)):
        if curve is None:
            continue
        for index, quantile in enumerate(("p50", "p99")):
            values = rounded((of(point)[index] for point in curve.at), 1000)
            lines.append(Line(f"{label} {quantile}", colour, values, dashed=colour == "canary", thin=index == 0))
    limit = Limit(limit_s * 1000, f"limit {limit_s * 1000:,.0f} ms") if limit_s else None
    highest = max((value for line in lines for value in line.values if value is not None), default=0.0)
    top = max(1.2 * limit.value, min(1.1 * highest, 3 * limit.value)) if limit else None
    key = (Key("in force", "base"), Key("advised", "canary"), Key("thin: p50", "note"))
    figure = _over_load(charts.figure([], lines, unit="ms", limit=limit, top=top), loads)
    return Chart(name, title, _say(found, limit_s, of), key, figure, big=True)


def _over_load(figure: dict[str, Any], loads: Sequence[float]) -> dict[str, Any]:
    """The same figure with requests a second in place of instants."""
    for trace in figure["data"]:
        trace["x"] = rounded(loads)
    title = {"text": "requests a second", "font": {"size": 11, "color": "@ink-3"}, "standoff": 4}
    axis = {"type": "linear", "range": [0, max(loads)], "tickformat": ",~g", "hoverformat": ",.4~g", "title": title}
    figure["layout"]["xaxis"].update(axis)
    figure["layout"]["margin"] = {**figure["layout"]["margin"], "b": 40}
    return {**figure, "across": "requests/s"}


def _say(found: WhatIf, limit_s: float | None, of: Callable[[At], tuple[float | None, float | None]]) -> Say:
    row = _row("", found.present)
    p99_s = of(row.at)[1]
    if p99_s is None:
        return Say("overrun", "is the shape in force at this load: requests come faster than it can do them.", "bad")
    over = limit_s is not None and p99_s > limit_s
    return Say(
        f"{p99_s * 1000:,.0f} ms",
        f"at p99 for the shape in force at this load, {'over' if over else 'within'} its limit.",
        "bad" if over else "",
    )
