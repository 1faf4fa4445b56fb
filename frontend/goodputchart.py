"""The chart of goodput: requests within the stage's limits, for each second and GPU, each release apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frontend import charts, words
from frontend.charts import Chart, Key, Line, Mark, Say, newest, rounded
from metrics.domain.goodput import MET, OF
from metrics.domain.views import FrameView

TITLE = "Goodput per GPU"
LINES = ("goodput", MET, OF, "gauge.gpus")
_LIMITS = (("ttft", "the first token within"), ("itl", "a mean gap within"))


def build(
    frame: FrameView, releases: Sequence[tuple[str, bool]], limits: Mapping[str, float], drawn: Sequence[Mark], past: Sequence[str] = ()
) -> Chart:
    """A line for each release; `limits` are the stage's by metric, `past` the releases that are no longer on trial."""
    lines, keys, said = [], [], []
    for release, canary in releases:
        values = {line.name: line.values for line in frame.lines if line.group == release}
        number, colour = words.number_of(release), "canary" if canary else "base"
        drawn_values = rounded(values.get("goodput", ()))
        lines.append(Line(f"release {number}", colour, drawn_values, canary, past=release in past))
        keys.append(Key(number, colour))
        now = newest(drawn_values)
        if now is not None:
            met, of = (sum(value or 0.0 for value in values.get(name, ())) for name in (MET, OF))
            said.append((canary, _one(number, now, met / of if of else None, newest(values.get("gauge.gpus", ())))))
    known = any(value is not None for line in lines for value in line.values)
    figure = charts.figure(frame.at, lines, marks=drawn) if known else {}
    return Chart("goodput", TITLE, say(said, limits), tuple(keys), figure, empty="" if known else "No figures in this range yet")


def _one(number: str, now: float, share: float | None, gpus: float | None) -> str:
    held = "" if gpus is None else f" of its {gpus:,.0f}"
    return f"{now:,.3g} a second for each{held} on release {number}{'' if share is None else f' ({words.share(share)} of its requests)'}"


def say(said: Sequence[tuple[bool, str]], limits: Mapping[str, float]) -> Say:
    """What is on trial first, and what counts as good."""
    asked = " and ".join(f"{text} {limits[metric] * 1000:,.0f} ms" for metric, text in _LIMITS if metric in limits)
    if not asked:
        return Say("No limit to meet:", "set a ttft or itl alarm on this stage, and the requests within it are counted.")
    if not said:
        return Say("No figures now.", f"What counts: {asked}.")
    first, *others = [text for _, text in sorted(said, key=lambda item: not item[0])]
    fair = " Less traffic is less goodput: compare the shares." if others else ""
    return Say(f"{first}{',' if others else '.'}", f"{'; '.join(others)}{'. ' if others else ''}What counts: {asked}.{fair}")
