"""Figures of the stage page as plain dicts for Plotly, with a heading, a sentence and a table each.

Colours are names of tokens of the style sheet (`@base`): the page resolves them, so a change of theme needs no new figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

Values = Sequence[float | None]
_LETTER = 0.035  # of a chart's width: what a mark's letter takes
_PANEL = 0.78  # of its height that a panel draws on; the rest is for its name above


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a chart's key: a release's line, or a swatch of the phase ramp."""

    text: str
    kind: str  # `base`, `canary`, `ph1` .. `ph4`, `note`


@dataclass(frozen=True, slots=True)
class Say:
    """The chart in a sentence: the value first, then the verdict."""

    strong: str
    rest: str = ""
    tone: str = ""  # `bad` when the value is over its limit


@dataclass(frozen=True, slots=True)
class Mark:
    """An event drawn on every chart under its letter."""

    letter: str
    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Limit:
    """A horizontal line. A soft one is advice, not an alarm."""

    value: float
    text: str
    soft: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """One line, bar or band. `colour` is a token; `thin` draws a median under its p99."""

    name: str
    colour: str
    values: Values
    dashed: bool = False
    thin: bool = False
    past: bool = False  # on trial once, and no more: dotted
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart as the page shows it. `kind` is `lines`, `stack`, `bars` or `area`."""

    id: str
    title: str
    say: Say
    key: tuple[Key, ...]
    figure: dict[str, Any] = field(default_factory=dict)
    big: bool = False
    empty: str = ""  # the sentence in place of a plot that would have nothing in it


def rounded(values: Iterable[float | None], scale: float = 1.0) -> list[float | None]:
    """Values for the wire: four significant digits are more than a screen shows."""
    return [None if value is None else float(f"{value * scale:.4g}") for value in values]


def newest(values: Values, within: int = 6) -> float | None:
    """The last figure of the last few steps; what is older is no present."""
    return next((value for value in reversed(values[-within:]) if value is not None), None)


def _axis(**more: Any) -> dict[str, Any]:
    axis = {
        "gridcolor": "@line",
        "linecolor": "@line-2",
        "zeroline": False,
        "fixedrange": True,
        "tickfont": {"size": 11, "color": "@ink-3"},
    }
    return {**axis, **more}


def _line_trace(line: Line, at: list[str], unit: str, area: bool) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "name": line.name,
        "x": at,
        "y": list(line.values),
        "connectgaps": False,
        "line": {
            "color": f"@{line.colour}",
            "width": 1.2 if line.thin or line.past else 2.5 if line.dashed else 2,
            "dash": "2px,3px" if line.past else "5px,3px" if line.dashed else "solid",
        },
        "hovertemplate": _hover(line.name, unit),
    }
    if _lonely(line.values):  # a sample between two gaps has no line to be seen by
        trace.update(mode="lines+markers", marker={"size": 4, "color": f"@{line.colour}"})
    if area:
        trace.update(fill="tozeroy", fillcolor="@sunken")
    return trace


def _lonely(values: Values) -> bool:
    padded = (None, *values, None)
    return any(
        value is not None and before is None and after is None for before, value, after in zip(padded, padded[1:], padded[2:], strict=False)
    )


def _hover(name: str, unit: str) -> str:
    suffix = "%" if unit == "%" else f" {unit}" if unit else ""
    return f"%{{y:,}}{suffix}<extra>{name}</extra>"


def _stack_trace(line: Line, at: list[str], unit: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "stackgroup": "all",
        "name": line.name,
        "x": at,
        "y": list(line.values),
        "line": {"width": 1, "color": "@surface"},
        "fillcolor": f"@{line.colour}",
        "hovertemplate": _hover(line.name, unit),
    }


def _bar_trace(line: Line, at: list[str], unit: str) -> dict[str, Any]:
    marker: dict[str, Any] = {"color": f"@{line.colour}", "line": {"width": 0}}
    if line.pattern:
        marker["pattern"] = {"shape": line.pattern, "fillmode": "overlay", "size": 5, "solidity": 0.3, "fgcolor": "@surface"}
    return {"type": "bar", "name": line.name, "x": at, "y": list(line.values), "marker": marker, "hovertemplate": _hover(line.name, unit)}


def _mark_shapes(marks: Sequence[Mark], span: timedelta) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A line for each, and a letter; those that would stand on each other have one text, `C–E`."""
    shapes = [
        {
            "type": "line",
            "x0": iso(mark.at),
            "x1": iso(mark.at),
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": "@control", "width": 1, "dash": "dot"},
        }
        for mark in marks
    ]
    groups: list[list[Mark]] = []
    for mark in marks:
        if groups and mark.at - groups[-1][-1].at < span * _LETTER:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    texts = [
        {
            "x": iso(group[0].at + (group[-1].at - group[0].at) / 2),
            "yref": "paper",
            "y": 1,
            "yanchor": "bottom",
            "text": group[0].letter if len(group) == 1 else f"{group[0].letter}–{group[-1].letter}",
            "showarrow": False,
            "font": {"size": 11, "color": "@ink-2"},
        }
        for group in groups
    ]
    return shapes, texts


def _limit_shapes(limit: Limit) -> tuple[dict[str, Any], dict[str, Any]]:
    colour = "@ink-3" if limit.soft else "@bad"
    stroke = {"color": colour, "width": 1 if limit.soft else 1.5, "dash": "dash" if limit.soft else "solid"}
    shape = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": limit.value, "y1": limit.value, "line": stroke}
    text = {
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "y": limit.value,
        "yanchor": "bottom",
        "text": limit.text,
        "showarrow": False,
        "font": {"size": 11, "color": colour},
    }
    return shape, text


def iso(at: datetime) -> str:
    """An instant as Plotly's date axis reads it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=8)
def _when(at: tuple[datetime, ...]) -> list[str]:
    """The instants of a chart, which all charts of a page share."""
    return [iso(instant) for instant in at]


def _top(lines: Sequence[Line], kind: str, limit: Limit | None, top: float | None) -> float:
    if top is not None:
        return top
    if kind in {"stack", "bars"}:
        columns = zip(*(line.values for line in lines), strict=True) if lines else iter(())
        highest = max((sum(value or 0 for value in column) for column in columns), default=0)
    else:
        highest = max((value for line in lines for value in line.values if value is not None), default=0)
    if limit and not limit.soft:
        highest = max(highest, limit.value)
    return highest * 1.18 or 1.0


def figure(
    at: Sequence[datetime],
    lines: Sequence[Line],
    *,
    unit: str = "",
    kind: str = "lines",
    limit: Limit | None = None,
    marks: Sequence[Mark] = (),
    top: float | None = None,
) -> dict[str, Any]:
    """Data and layout of one chart over the instants `at`; `top` fixes the vertical axis."""
    when = _when(tuple(at))
    if kind == "stack":
        data = [_stack_trace(line, when, unit) for line in lines]
    elif kind == "bars":
        data = [_bar_trace(line, when, unit) for line in lines]
    else:
        data = [_line_trace(line, when, unit, kind == "area" and not line.thin) for line in lines]
    shown = [mark for mark in marks if at and at[0] <= mark.at <= at[-1]]
    shapes, texts = _mark_shapes(shown, at[-1] - at[0] if at else timedelta())
    highest = _top(lines, kind, limit, top)
    if limit and limit.value <= highest:
        shape, text = _limit_shapes(limit)
        shapes.append(shape)
        texts.append(text)
    layout = {
        "autosize": True,
        "barmode": "stack",
        "bargap": 0.15,
        "showlegend": False,
        "hovermode": "x unified",
        "dragmode": False,
        "margin": {"l": 44, "r": 8, "t": 16, "b": 22},
        "paper_bgcolor": "transparent",
        "plot_bgcolor": "transparent",
        "font": {"size": 11, "color": "@ink-3"},
        "hoverlabel": {"bgcolor": "@surface", "bordercolor": "@line-2", "font": {"size": 12, "color": "@ink"}},
        "shapes": shapes,
        "annotations": texts,
        "xaxis": _axis(
            type="date",
            range=[when[0], when[-1]] if when else [],
            tickformat="%H:%M",
            nticks=6,
            showgrid=False,
            showline=True,
            hoverformat="%H:%M:%S",
        ),
        "yaxis": _axis(range=[0, highest], nticks=5, tickformat=",", ticksuffix="%" if unit == "%" else ""),
    }
    return {"data": data, "layout": layout, "unit": unit}


def panels(
    at: Sequence[datetime], stacks: Sequence[tuple[str, Sequence[Line]]], *, unit: str = "", marks: Sequence[Mark] = ()
) -> dict[str, Any]:
    """Stacked bands in one panel for each name, under each other over the same time and to the same scale, so that they compare."""
    whole = figure(at, [], unit=unit, marks=marks)
    layout, height = whole["layout"], 1 / max(1, len(stacks))
    top = max((_top(lines, "stack", None, None) for _, lines in stacks), default=1.0)
    for place, (name, lines) in enumerate(stacks):
        axis = "y" if place == 0 else f"y{place + 1}"
        for line in lines:
            whole["data"].append({**_stack_trace(line, _when(tuple(at)), unit), "stackgroup": axis, "yaxis": axis})
        begin = 1 - height * (place + 1)
        layout[f"yaxis{axis[1:]}"] = {**layout["yaxis"], "range": [0, top], "nticks": 3, "domain": [begin, begin + height * _PANEL]}
        if len(stacks) > 1:
            layout["annotations"].append(_panel_text(name, begin + height * _PANEL))
    if stacks:
        layout["xaxis"]["anchor"] = f"y{len(stacks)}" if len(stacks) > 1 else "y"
    layout["hoversubplots"] = "axis"
    return whole


def _panel_text(text: str, y: float) -> dict[str, Any]:
    font = {"size": 11, "color": "@ink-2"}
    return {
        "xref": "paper",
        "x": 0.01,
        "xanchor": "left",
        "yref": "paper",
        "y": y,
        "yanchor": "bottom",
        "text": text,
        "showarrow": False,
        "font": font,
    }


def plain(charts: Sequence[Chart]) -> list[Mapping[str, Any]]:
    """What the page's script reads: everything of a chart that changes."""
    return [
        {
            "id": chart.id,
            "say": {"strong": chart.say.strong, "rest": chart.say.rest, "tone": chart.say.tone},
            "key": [{"text": key.text, "kind": key.kind} for key in chart.key],
            "figure": _shared(chart.figure),
            "empty": chart.empty,
        }
        for chart in charts
    ]


def _shared(figure: dict[str, Any]) -> dict[str, Any]:
    """The instants once for all lines of a chart that have the same: they are half of what is sent."""
    data = figure.get("data", [])
    if len(data) < 2 or any(trace["x"] is not data[0]["x"] for trace in data):
        return figure
    return {**figure, "x": data[0]["x"], "data": [{name: value for name, value in trace.items() if name != "x"} for trace in data]}
