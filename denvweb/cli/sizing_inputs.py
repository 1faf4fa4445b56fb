"""What `size`, `advise` and `simulate` are asked: figures on the command line, a trace, or what a stage measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from denvweb.cli.client import Client
from denvweb.cli.names import name_option
from denvweb.cli.output import split_stage
from denvweb.cli.replay.trace import read_trace
from denvweb.core.errors import ConflictError, InvalidError, NotFoundError
from denvweb.core.units import parse_duration_s, parse_ratio
from denvweb.core.words import did_you_mean
from fleets.domain.hardware import GPUS, GpuKind
from fleets.domain.simulator.arrivals import Process, at_rate, fitted
from fleets.domain.simulator.types import Arrival, Limits
from fleets.domain.sizing.load import held_tokens
from fleets.domain.sizing.types import Need, Serving
from fleets.domain.views import FleetMap
from metrics.domain.views import MetricsView
from releases.catalog import catalog
from releases.domain.recipes import Recipe, recipe_unknown
from releases.domain.serving import ITL_DEFAULT_S, LENGTH_SPREAD, MOST_GPUS, TTFT_DEFAULT_S, serving_of
from releases.domain.views import ReleaseView, StageView

F = TypeVar("F", bound=Callable[..., Any])

MEASURED_OVER = "1h"


class Seconds(click.ParamType[float]):
    """`1500ms`."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Positive seconds."""
        seconds = value if isinstance(value, float) else parse_duration_s(str(value))
        if not seconds:
            self.fail(f"{value} is no duration; write 1500ms or 2s", param, ctx)
        return seconds


class Ratio(click.ParamType[float]):
    """`30%` or `0.3`."""

    name = "ratio"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """0 to 1."""
        ratio = value if isinstance(value, float) else parse_ratio(str(value))
        if ratio is None or not 0.0 <= ratio < 1.0:
            self.fail(f"{value} is no share; write 30% or 0.3", param, ctx)
        return ratio


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked, resolved. `release` and `stage` are those of the measured stage; None without one."""

    recipe: Recipe
    serving: Serving
    need: Need
    source: str  # `given`, the trace's file name, or `measured on ds-flash/prod-us over 1h`
    release: ReleaseView | None = None
    stage: StageView | None = None


def traffic_options(command: F) -> F:
    """Who asks for what: the options that all three commands share."""
    for option in (
        name_option("recipe", metavar="RECIPE", help="As `denv recipes` lists them."),
        click.option("--gpu-kind", default="", metavar="KIND", help="Such as GB200 or H200."),
        click.option("--domain-gpus", type=click.IntRange(1, MOST_GPUS), help="GPUs of one scale-up domain; the kind's usual otherwise."),
        click.option("--isl", type=click.IntRange(1), help="Mean prompt tokens."),
        click.option("--osl", type=click.IntRange(1), help="Mean output tokens."),
        click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Requests a second; with --trace, to play it at."),
        click.option("--prefix-hit", type=Ratio(), default=0.0, help="Share of prompt tokens that are cached."),
        click.option("--spread", type=click.FloatRange(0, 10), default=LENGTH_SPREAD, show_default=True,
                     help="Of lengths: standard deviation over mean."),
        click.option("--burst", type=click.FloatRange(0.1, 20), default=1.0, show_default=True,
                     help="Of gaps between requests; 1 is a Poisson process."),
        click.option("--trace", type=click.Path(path_type=Path), help="Mooncake's JSON lines or Azure's CSV."),
        click.option("--ttft-p99", type=Seconds(), default=None, help="Limit; 2s without one."),
        click.option("--itl-p99", type=Seconds(), default=None, help="Limit; 50ms without one."),
        click.option("--seed", type=int, default=0, help="Of the random numbers."),
    ):  # fmt: skip
        command = option(command)
    return command


def question(stage: str, given: dict[str, Any]) -> Question:
    """The question of a command line; the control plane is asked only when it names a stage."""
    if stage:
        return _measured(stage, given)
    if not given["recipe"] or not given["gpu_kind"]:
        raise click.UsageError("name what serves it: --recipe and --gpu-kind, or MODEL/STAGE")
    recipe = recipe_of(given["recipe"])
    serving = serving_of(recipe, gpu_of(given["gpu_kind"]), domain_gpus=given["domain_gpus"])
    limits = Limits(given["ttft_p99"] or TTFT_DEFAULT_S, given["itl_p99"] or ITL_DEFAULT_S)
    process, arrivals, source = traffic(given)
    return Question(recipe, serving, Need(process, limits, arrivals), source)


def traffic(given: dict[str, Any]) -> tuple[Process, tuple[Arrival, ...], str]:
    """Requests of a trace, or the process that the figures describe, and where they are from."""
    if given["trace"] is not None:
        arrivals = trace_arrivals(given["trace"], given["rate"])
        held = held_tokens(arrivals)
        total = sum(arrival.input_tokens for arrival in arrivals)
        return fitted(arrivals, prefix_hit=sum(held) / total), tuple(arrivals), given["trace"].name
    missing = [f"--{name}" for name in ("isl", "osl", "rate") if given[name] is None]
    if missing:
        raise click.UsageError(f"say what comes: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing, or give --trace")
    return process_of(given, given["rate"], given["isl"], given["osl"], given["prefix_hit"]), (), "given"


def process_of(given: dict[str, Any], rate: float, isl: float, osl: float, hit: float) -> Process:
    """Arrivals of so many requests of such lengths."""
    return Process(rate, isl, osl, hit, given["burst"], given["spread"], given["spread"])


def trace_arrivals(path: Path, rate: float | None) -> list[Arrival]:
    """A trace as arrivals; at another rate when one is given."""
    requests = read_trace(path)
    arrivals = [Arrival(r.at_s, r.input_tokens, r.output_tokens, r.blocks if r.blocks and r.blocks[0] >= 0 else ()) for r in requests]
    return at_rate(arrivals, rate) if rate else arrivals


def recipe_of(name: str) -> Recipe:
    """A recipe of the catalogue."""
    known = catalog()
    if name not in known:
        raise InvalidError(recipe_unknown(name, known), code="recipe-unknown")
    return known[name]


def gpu_of(name: str) -> GpuKind:
    """A GPU kind by any of its names."""
    if name not in GPUS:
        raise InvalidError(f"GPU kind {name} is not known; one of {', '.join(GPUS)}{did_you_mean(name, GPUS)}", code="gpu-unknown")
    return GPUS[name]


def _measured(stage: str, given: dict[str, Any]) -> Question:
    """The traffic that a stage had, on what it runs on, with its own alarms as limits; options come before what was measured."""
    model, name = split_stage(stage)
    client = Client()
    view = client.get(f"stages/{model}/{name}", StageView)
    if view.release is None:
        raise ConflictError(f"{stage} has no release yet; give --recipe and --gpu-kind with figures instead", code="no-release")
    release = client.get(f"models/{model}/releases/{view.release}", ReleaseView)
    recipe = recipe_of(given["recipe"] or release.recipe)
    if given["gpu_kind"]:
        gpu, domain, simulated = gpu_of(given["gpu_kind"]), given["domain_gpus"], False
    else:
        fleets = [fleet for fleet in client.get_all("fleets", FleetMap) if fleet.fleet in view.fleets]
        if not fleets:
            raise NotFoundError(f"none of the fleets of {stage} is there: {', '.join(view.fleets)}", code="fleet-unknown")
        sizes = [sum(len(node.cells) for node in domain.nodes) for domain in fleets[0].domains]
        gpu, domain = gpu_of(fleets[0].gpu_kind), given["domain_gpus"] or max(sizes, default=0)
        simulated = fleets[0].simulated
    limits = {alarm.metric: alarm.limit_s for alarm in view.alarms if alarm.quantile == 0.99 and alarm.limit_s}
    ttft_s = given["ttft_p99"] or limits.get("ttft") or TTFT_DEFAULT_S
    itl_s = given["itl_p99"] or limits.get("itl") or ITL_DEFAULT_S
    if given["trace"] is not None:
        process, arrivals, source = traffic(given)
    else:
        process, arrivals, source = _measured_process(client, stage, given), (), f"measured on {stage} over {MEASURED_OVER}"
    serving = serving_of(recipe, gpu, domain_gpus=domain, simulated=simulated)
    return Question(recipe, serving, Need(process, Limits(ttft_s, itl_s), arrivals), source, release, view)


def _measured_process(client: Client, stage: str, given: dict[str, Any]) -> Process:
    total = client.get(f"stages/{stage}/metrics", MetricsView, since=MEASURED_OVER).total
    if not total.requests or not total.tokens_in or not total.tokens_out:
        raise ConflictError(f"{stage} had no traffic in the last {MEASURED_OVER}; give --isl, --osl and --rate", code="no-data")
    return process_of(
        given,
        given["rate"] or total.per_s,
        given["isl"] or total.tokens_in / total.requests,
        given["osl"] or total.tokens_out / total.requests,
        given["prefix_hit"] or min(0.99, total.cached_ratio or 0.0),
    )
