"""`denv scale`."""

from __future__ import annotations

import click

from denvweb.cli.client import Client
from denvweb.cli.names import name_argument
from denvweb.cli.output import echo_json, json_option, paint, split_stage, table
from denvweb.cli.stages import event_line
from denvweb.core.units import format_duration
from releases.domain.scaling_views import KnobView, ScaleView


@click.command()
@name_argument("stage")
@click.option("--units", type=int, help="Serving units of the stage.")
@click.option("--prefill", type=int, help="Prefill replicas of each serving unit.")
@click.option("--decode", type=int, help="Decode replicas of each serving unit.")
@click.option("--aggregated", type=int, help="Replicas of each serving unit without roles.")
@click.option("--auto", "--release-control", "auto", is_flag=True, help="Give every number that was set by hand back to the traffic.")
@click.option("--reason", default="", help="Why; it is kept in the journal.")
@json_option
def scale(
    stage: str,
    units: int | None,
    prefill: int | None,
    decode: int | None,
    aggregated: int | None,
    auto: bool,
    reason: str,
    as_json: bool,
) -> None:
    """How many units and replicas a stage has, what its traffic asks for, and setting them by hand.

    Numbers move inside the ranges of the release, such as `replicas: { min: 1, max: 3 }`, and no engine restarts.
    What is set by hand stays until `--auto`. Outside the ranges it takes a release.
    """
    model, name = split_stage(stage)
    path = f"stages/{model}/{name}/scale"
    counts = {"units": units, "prefill": prefill, "decode": decode, "aggregated": aggregated}
    asked = {knob: count for knob, count in counts.items() if count is not None}
    if auto and asked:
        raise click.UsageError("--auto gives all numbers back; set none in the same call")
    client = Client()
    if asked or auto:
        view = client.post(path, ScaleView, {**asked, "auto": auto, "reason": reason})
    else:
        view = client.get(path, ScaleView)
    if as_json:
        echo_json(view)
    else:
        click.echo(scale_text(view))


def scale_text(view: ScaleView) -> str:
    """The numbers as a table, then why, then the last decisions."""
    rows = [["", "in force", "ready", "advised", "range", ""], *(_row(view, knob) for knob in view.knobs)]
    lines = [f"{view.stage}   {view.ratio}   scaling: {view.scaling}", table(rows, right=(1, 2, 3), indent="  ")]
    lines.append(f"uncached prompts under {view.local_prefill_below:,} tokens are prefilled by decode")
    if view.why:
        lines.append(f"last look: {view.why}")
    lines += [event_line(event) for event in reversed(view.decisions)]
    return "\n".join(lines)


def _row(view: ScaleView, knob: KnobView) -> list[str]:
    notes = []
    if knob.held_by:
        since = f" since {knob.held_at:%Y-%m-%d %H:%M}" if knob.held_at else ""
        notes.append(paint(f"set by {knob.held_by}{since}; --auto gives it back", "warn"))
    if (rest_s := view.cool_down_s.get(knob.knob)) is not None:
        notes.append(f"may move again in {format_duration(rest_s)}")
    advised = "-" if knob.advised is None else str(knob.advised)
    spread = "fixed" if knob.least == knob.most else f"{knob.least} to {knob.most}"
    return [knob.knob, str(knob.in_force), str(knob.ready), advised, spread, "; ".join(notes)]
