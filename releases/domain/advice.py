"""Whether a stage should be split into prefill and decode, as advice in a dry run: from what it measured, and computed both ways."""

from __future__ import annotations

from collections.abc import Sequence

from fleets.domain.simulator.arrivals import Process
from fleets.domain.simulator.types import Limits
from fleets.domain.sizing.advise import Condition, Contender, beside, conditions
from fleets.domain.sizing.load import load_of
from fleets.domain.sizing.types import MakeDraws, Need, Serving
from fleets.domain.types import FleetView
from releases.domain.findings import Severity, stage_subject
from releases.domain.recipes import Recipe
from releases.domain.serving import limits_of, serving_on, shape_of
from releases.domain.spec_types import Mode, ReleaseSpec, StageSpec
from releases.domain.views import FindingView

_CODES = {"volume": "low-volume-disaggregated", "traffic-shape": "decode-heavy-disaggregated"}
_MORE = {"aggregated": "aggregated-carries-more", "disaggregated": "disaggregated-carries-more"}
_FULL = 0.7  # mean sequences over the most, from which on crowds wait for a place
_MUCH = 1.1  # times what the other kind carries, from which on it is worth a word: simulations are a few percent apart


def traffic_findings(
    release: ReleaseSpec,
    stage: StageSpec,
    recipe: Recipe,
    fleets: Sequence[FleetView],
    process: Process,
    make_draws: MakeDraws,
    capacity_ratio_min: float = 1.0,
) -> tuple[FindingView, ...]:
    """What the measured traffic says about the shape: the conditions that do not hold, both kinds on the same GPUs, and whether what
    the plan leaves at its worst moment (`capacity_ratio_min` of the stage) carries it.

    Nothing when the stage's fleets are not of a known GPU kind.
    """
    serving = serving_on(recipe, stage, fleets)
    if serving is None:
        return ()
    need = Need(process, limits_of(stage))
    held = conditions(serving, need, load_of(need, stage.topology.conditional, make_draws))
    contenders: tuple[Contender, ...] = ()
    apart = stage.topology.mode is Mode.DISAGGREGATED
    if apart or all(condition.holds for condition in held):
        contenders = beside(serving, need, shape_of(release, stage, recipe, serving.gpu), make_draws)
    return (*_unmet(stage, held), *_computed(stage, contenders, need, serving), *_meanwhile(stage, contenders, need, capacity_ratio_min))


def _meanwhile(stage: StageSpec, contenders: Sequence[Contender], need: Need, ratio: float) -> Sequence[FindingView]:
    """Said where the stage as a whole carries the load and what is left while units are replaced does not."""
    whole = contenders[0].capacity_per_s if contenders else 0.0
    if ratio >= 1 or not whole or not contenders[0].meets or whole * ratio >= need.process.rate_per_s:
        return ()
    left = f"{ratio:.0%} of the stage is left, which carries {whole * ratio:,.1f} requests/s" if ratio else "nothing serves"
    sentence = (
        f"while units are replaced {left}; {need.process.rate_per_s:,.1f} were measured in the last hour: "
        "free a domain for one more unit, or release when there is less traffic"
    )
    return (_finding(stage, Severity.WARN, "capacity-below-load", sentence),)


def _unmet(stage: StageSpec, held: Sequence[Condition]) -> Sequence[FindingView]:
    if stage.topology.mode is not Mode.DISAGGREGATED:
        return ()
    return [
        _finding(stage, Severity.ADVICE, _CODES[one.name], f"{one.sentence}: an aggregated topology is usually less trouble for as much")
        for one in held
        if one.name in _CODES and not one.holds
    ]


def _computed(stage: StageSpec, contenders: Sequence[Contender], need: Need, serving: Serving) -> Sequence[FindingView]:
    """Side by side. A shape that misses a limit is never called the better one."""
    if not contenders:
        return ()
    mine, others = contenders[0], contenders[1:]
    process, limits = need.process, need.limits
    load = f"{process.rate_per_s:.1f} requests/s of {process.input_tokens:,.0f} in and {process.output_tokens:,.0f} out were measured"
    sentence = f"{load}; within {_limits(limits)} {' and '.join(_carries(one, need, serving) for one in contenders)}"
    better = [one for one in others if one.meets and one.capacity_per_s > _MUCH * mine.capacity_per_s]
    if not mine.meets:
        seen = mine.forecast
        missed = f"at this load ttft p99 would be {_ms(seen.ttft_p99.value)} and itl p99 {_ms(seen.itl_p99.value)}"
        return (
            _finding(stage, Severity.WARN, "limits-missed-at-load", f"{sentence}; {missed}: `denv size` finds a shape that keeps them"),
        )
    if better:
        return (_finding(stage, Severity.ADVICE, _MORE[better[0].kind], f"{sentence}; `denv advise` shows both"),)
    return (_finding(stage, Severity.OK, "shape-computed", sentence),)


def _carries(one: Contender, need: Need, serving: Serving) -> str:
    name = f"{one.kind} ({one.shape.text}, {one.shape.gpus} {serving.gpu.name})"
    if not one.capacity_per_s:
        return f"{name} carries nothing"
    kept = "" if one.meets else ", which is too little"
    return f"{name} carries {one.capacity_per_s:,.1f}{kept}{_full(one, need)}"


def _full(one: Contender, need: Need) -> str:
    """A batch that may not grow is a bound of its own, and one that is easily moved."""
    pool = one.shape.pools[-1]
    running = one.capacity_per_s * need.process.output_tokens * one.forecast.itl_p50.value / (pool.replicas * one.shape.units)
    return f" (bound by max-num-seqs {pool.max_sequences} of {pool.role.value})" if running > _FULL * pool.max_sequences else ""


def _limits(limits: Limits) -> str:
    return f"ttft p99 {_ms(limits.ttft_s)} and itl p99 {_ms(limits.itl_s)}"


def _ms(seconds: float | None) -> str:
    return "any" if seconds is None else f"{seconds * 1000:,.0f} ms"


def _finding(stage: StageSpec, severity: Severity, code: str, sentence: str) -> FindingView:
    return FindingView(severity.value, code, stage_subject(stage), sentence)
