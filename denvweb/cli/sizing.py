"""`denv size`, `denv advise`, `denv simulate`."""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from denvweb.cli.names import name_argument, name_option
from denvweb.cli.output import echo_json, json_option
from denvweb.cli.sizing_inputs import gpu_of, question, recipe_of, traffic, traffic_options
from denvweb.cli.sizing_release import release_text
from denvweb.cli.sizing_text import advice_text, result_text, size_text
from denvweb.core.errors import InvalidError
from denvweb.core.units import parse_duration_s
from fleets.domain.protocol import ConditionalPolicy
from fleets.domain.simulator.arrivals import drawn
from fleets.domain.simulator.run import simulate as run_simulation
from fleets.domain.simulator.types import Arrival, Draws, Failure, Limits, PoolShape, Run, StageShape
from fleets.domain.sizing.advise import advise as ask_advice
from fleets.domain.sizing.size import size as find_size
from fleets.domain.types import Role
from releases.domain.serving import ITL_DEFAULT_S, TTFT_DEFAULT_S, serving_of, shape_of
from releases.domain.spec import ReleaseFile, parse
from releases.domain.units import stage_key

_FAILURE = re.compile(r"(prefill|decode|aggregated)(?::(\d+))?(?::(\d+))?@([^+]+)\+(.+)")
_SHAPE = re.compile(r"(?:(\d+)P(\d+)D|(\d+)A)")


def _draws(seed: int, offset: int) -> Draws:
    return random.Random(f"{seed}/{offset}")


def _make_draws(seed: int) -> Any:
    return lambda offset: _draws(seed, offset)


@click.command()
@name_argument("stage", required=False, default="", metavar="[MODEL/STAGE]")
@traffic_options
@click.option("--aggregated", is_flag=True, help="Size replicas that do both, instead of prefill and decode pools.")
@click.option("--gpu-price", type=click.FloatRange(min=0), help="Of one GPU and hour, for the cost.")
@click.option("--write", type=click.Path(path_type=Path, dir_okay=False), help="Write the release that would do it.")
@click.option("--weights", default="", help="With --write: hf://org/name@revision.")
@name_option("fleet", help="With --write: where it should run.")
@json_option
def size(
    stage: str, aggregated: bool, gpu_price: float | None, write: Path | None, weights: str, fleet: str, as_json: bool, **given: Any
) -> None:
    """How many prefill and decode replicas, in how many units, for the traffic of a stage, of a trace, or as given."""
    asked = question(stage, given)
    found = find_size(asked.serving, asked.need, _make_draws(given["seed"]), gpu_price=gpu_price, aggregated=aggregated)
    text = release_text(asked, found, weights=weights, fleet=fleet) if write else ""
    if write:
        try:
            write.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidError(f"{write}: {error.strerror}") from error
    if as_json:
        echo_json(found)
        return
    click.echo(size_text(asked, found))
    if write:
        click.echo(f"\nwritten to {write}; check it with `denv release -f {write} --dry-run`")


@click.command()
@name_argument("stage", required=False, default="", metavar="[MODEL/STAGE]")
@traffic_options
@click.option("--gpus", type=click.IntRange(1), help="To compare both on; as many as the dearer needs otherwise.")
@json_option
def advise(stage: str, gpus: int | None, as_json: bool, **given: Any) -> None:
    """Whether to disaggregate: four conditions that must all hold, then both ways computed on the same GPUs.

    Exit status 1 when neither way keeps the limits.
    """
    asked = question(stage, given)
    found = ask_advice(asked.serving, asked.need, _make_draws(given["seed"]), gpus=gpus)
    if as_json:
        echo_json(found)
    else:
        click.echo(advice_text(asked, found))
    sys.exit(0 if found.winner else 1)


@click.command()
@click.option("-f", "--file", "file", type=click.Path(path_type=Path), help="A release file; its own shape is simulated.")
@click.option("--stage", default="", help="Of the file; its first otherwise.")
@click.option("--shape", default="", metavar="2P1D", help="Or the shape of a unit: 2P1D, or 2A for aggregated.")
@click.option("--prefill-gpus", type=click.IntRange(1), default=4, show_default=True, help="Of one prefill replica, with --shape.")
@click.option(
    "--decode-gpus", type=click.IntRange(1), default=8, show_default=True, help="Of one decode or aggregated replica, with --shape."
)
@click.option("--max-sequences", type=click.IntRange(1), default=1024, show_default=True, help="Of one decode replica, with --shape.")
@click.option("--units", type=click.IntRange(1), help="Serving units; the file's, or 1.")
@click.option("--local-prefill-below", type=click.IntRange(0), help="Uncached tokens; the file's, or 1,000.")
@click.option("--requests", type=click.IntRange(1), default=20_000, show_default=True, help="To draw, without --trace.")
@click.option("--fail", "failures", multiple=True, metavar="ROLE:UNIT:NUMBER@60s+30s", help="A replica dies at 60s and is back 30s later.")
@traffic_options
@json_option
def simulate(file: Path | None, as_json: bool, **given: Any) -> None:
    """Play a trace, or drawn requests, against a shape: what users would have seen, by discrete events and the router's own policy."""
    title, shape = _shape_of_file(file, given) if file else _shape_given(given)
    process, trace, source = traffic(given)
    arrivals: Iterable[Arrival] = trace or drawn(process, given["requests"], _draws(given["seed"], 2))
    limits = Limits(given["ttft_p99"] or TTFT_DEFAULT_S, given["itl_p99"] or ITL_DEFAULT_S)
    run = Run(limits=limits, failures=sorted((_failure(text, shape) for text in given["failures"]), key=lambda one: one.at_s))
    began_s = time.perf_counter()
    result = run_simulation(shape, arrivals, run)
    if as_json:
        echo_json(result)
    else:
        click.echo(result_text(f"{title}   {source}", shape, result, time.perf_counter() - began_s))


def _shape_given(given: dict[str, Any]) -> tuple[str, StageShape]:
    if not (given["shape"] and given["recipe"] and given["gpu_kind"]):
        raise click.UsageError("name what to simulate: -f FILE with --gpu-kind, or --shape, --recipe and --gpu-kind")
    match = _SHAPE.fullmatch(given["shape"].upper())
    if match is None:
        raise click.UsageError(f"`{given['shape']}` is no shape; write 2P1D, or 2A for aggregated")
    serving = serving_of(recipe_of(given["recipe"]), gpu_of(given["gpu_kind"]), domain_gpus=given["domain_gpus"])
    numbers = {Role.PREFILL: match[1], Role.DECODE: match[2], Role.AGGREGATED: match[3]}
    pools = []
    for role, count in numbers.items():
        if count is None:
            continue
        if int(count) < 1:
            raise click.UsageError(f"`{given['shape']}`: every pool has one replica at least")
        if role not in serving.roles:
            raise InvalidError(f"recipe {given['recipe']} has no {role.value} role", code="engine-cannot-disaggregate")
        gpus = given["prefill_gpus"] if role is Role.PREFILL else given["decode_gpus"]
        pools.append(PoolShape(role, int(count), gpus, given["max_sequences"], serving.roles[role].max_batched_tokens))
    conditional = ConditionalPolicy() if given["local_prefill_below"] is None else ConditionalPolicy(given["local_prefill_below"])
    shape = StageShape(serving.model, serving.gpu, given["units"] or 1, tuple(pools), conditional)
    return given["recipe"], _checked(shape)


def _shape_of_file(file: Path, given: dict[str, Any]) -> tuple[str, StageShape]:
    if not given["gpu_kind"]:
        raise click.UsageError("a release file does not say which GPUs its fleets have: give --gpu-kind")
    try:
        parsed = parse(file.read_text("utf-8"))
    except OSError as error:
        raise InvalidError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidError(f"{file}: not text in UTF-8 (byte {error.start})") from error
    if not isinstance(parsed, ReleaseFile):
        raise InvalidError(f"{file} has mistakes", fields={"": [error.text(file.name) for error in parsed]})
    stage = parsed.stage(given["stage"]) if given["stage"] else parsed.stages[0]
    if stage is None:
        raise InvalidError(f"{file} has no stage {given['stage']}; it has {', '.join(one.name for one in parsed.stages)}")
    conditional = stage.topology.conditional
    if given["local_prefill_below"] is not None:
        conditional = ConditionalPolicy(given["local_prefill_below"], conditional.prefill_queue_above)
    recipe, gpu = recipe_of(parsed.release.recipe), gpu_of(given["gpu_kind"])
    shape = shape_of(parsed.release, stage, recipe, gpu, units=given["units"], conditional=conditional)
    return stage_key(parsed.release, stage), _checked(shape)


def _checked(shape: StageShape) -> StageShape:
    """Refuse what could not start."""
    for pool in shape.pools:
        if shape.kv_tokens(pool) < 1:
            raise InvalidError(
                f"{pool.role.value}: the weights do not fit {pool.gpus} {shape.gpu.name} with room for KV", code="weights-do-not-fit"
            )
    return shape


def _failure(text: str, shape: StageShape) -> Failure:
    match = _FAILURE.fullmatch(text)
    at_s, down_s = (parse_duration_s(match[4]), parse_duration_s(match[5])) if match else (None, None)
    if match is None or at_s is None or down_s is None:
        raise click.UsageError(f"`{text}` is no failure; write decode:0:0@60s+30s, or prefill@60s+30s for the first one")
    role, unit, ordinal = Role(match[1]), int(match[2] or 0), int(match[3] or 0)
    pool = next((pool for pool in shape.pools if pool.role is role), None)
    if pool is None or unit >= shape.units or ordinal >= pool.replicas:
        raise click.UsageError(f"`{text}`: there is no such replica in {shape.text}")
    return Failure(at_s, unit, role, ordinal, down_s)
