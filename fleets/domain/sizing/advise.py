"""When to disaggregate: four conditions that must all hold, then both ways computed side by side for the same GPUs and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from denvweb.core.errors import InvalidError
from fleets.domain.simulator.arrivals import at_rate
from fleets.domain.simulator.types import StageShape
from fleets.domain.sizing.forecast import Steady, forecast, overrun, play
from fleets.domain.sizing.load import Load, load_of
from fleets.domain.sizing.shapes import (
    Apart,
    Packed,
    proposals_apart,
    proposals_together,
    shape_apart,
    shape_together,
)
from fleets.domain.sizing.size import size, steady_apart, steady_together
from fleets.domain.sizing.threshold import bearable
from fleets.domain.sizing.types import Forecast, MakeDraws, Need, Serving

LARGE_MODEL_PARAMS = 100e9  # from here on splitting pays ("Beyond the Buzz", MLSys 2026; llm-d: medium to large models)
VOLUME_LOW, VOLUME_HIGH = 1e8, 1e9  # tokens a day
LONG_PROMPT_TOKENS = 2048  # uncached: Dynamo's own threshold for an effective ISL
PREFILL_HEAVY_RATIO = 4.0  # prompt tokens for each output token; llm-d speaks of 10 : 1, and 1 : 1 does not pay
_REQUESTS = 2500
_FEW_REQUESTS = 1000  # where somebody waits for the answer
_HALVINGS = 6
_DOUBLINGS = 6  # of a guess that was too low
_TRIALS = 2  # closed-form favourites of each kind that are simulated


@dataclass(frozen=True, slots=True)
class Condition:
    """One of the four. `value` and `needs` are in `unit`; an engine's support is 1 or 0."""

    name: str
    holds: bool
    value: float
    needs: float
    unit: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Contender:
    """The best shape found of one kind. `capacity_per_s` is the most that it carries within both limits."""

    kind: str  # `disaggregated` or `aggregated`
    shape: StageShape
    forecast: Forecast  # at the load asked for
    capacity_per_s: float

    @property
    def meets(self) -> bool:
        """Whether it keeps both limits at the load asked for."""
        return self.forecast.meets

    @property
    def goodput_per_gpu_s(self) -> float:
        """Requests within the limits for each GPU and second, at its best."""
        return self.capacity_per_s / self.shape.gpus


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer of `denv advise`. `absent` says why a contender is missing; `winner` is empty when neither keeps the limits."""

    conditions: tuple[Condition, ...]
    gpus: int
    contenders: tuple[Contender, ...]
    absent: dict[str, str]
    winner: str
    advice: str  # `disaggregated`, `aggregated` or `neither`
    sentence: str


def volume_needed(total_params: float) -> float:
    """Tokens a day from which splitting is worth its trouble: 1e9 for a model of 1e11 parameters, 1e8 from 1e12 on."""
    return max(VOLUME_LOW, min(VOLUME_HIGH, VOLUME_HIGH * LARGE_MODEL_PARAMS / total_params))


def conditions(serving: Serving, need: Need, load: Load) -> tuple[Condition, ...]:
    """The four, each with its number."""
    model, tokens = serving.model, need.tokens_per_day
    volume = volume_needed(model.total_params)
    ratio = load.uncached_tokens / load.output_tokens
    long, heavy = load.uncached_tokens >= LONG_PROMPT_TOKENS, ratio >= PREFILL_HEAVY_RATIO
    why = serving.cannot_disaggregate
    return (
        Condition("volume", tokens >= volume, tokens, volume, "tokens/day",
                  f"{tokens:.2g} tokens a day; a model of {model.total_params / 1e9:,.0f}B needs {volume:.2g}"),
        Condition("model-size", model.total_params >= LARGE_MODEL_PARAMS, model.total_params, LARGE_MODEL_PARAMS, "parameters",
                  f"{model.total_params / 1e9:,.0f}B parameters of 100B"),
        Condition("traffic-shape", long and heavy, load.uncached_tokens, LONG_PROMPT_TOKENS, "uncached tokens",
                  f"{load.uncached_tokens:,.0f} uncached prompt tokens of {LONG_PROMPT_TOKENS:,}, and {ratio:.1f} for each output token of "
                  f"{PREFILL_HEAVY_RATIO:.0f}"),
        Condition("engine", not why, float(not why), 1.0, "", why or "the engine hands KV over from prefill to decode"),
    )  # fmt: skip


def advise(serving: Serving, need: Need, make_draws: MakeDraws, *, gpus: int | None = None) -> Advice:
    """Whether to disaggregate, on `gpus` GPUs (None: as many as the cheapest shape that keeps the limits takes)."""
    serving = bearable(serving, need.limits)
    load = load_of(need, serving.conditional, make_draws)
    held = conditions(serving, need, load)
    budget = gpus or _budget(serving, need, make_draws)
    contenders, absent = [], {}
    for kind, contest in (("disaggregated", _best_apart), ("aggregated", _best_together)):
        if kind == "disaggregated" and serving.cannot_disaggregate:
            absent[kind] = serving.cannot_disaggregate
            continue
        best = contest(serving, need, load, budget, make_draws)
        if best is None:
            absent[kind] = f"no {kind} shape of {budget} GPUs can keep the limits"
        else:
            contenders.append(best)
    winner = _winner(contenders)
    advice, sentence = _verdict(held, contenders, winner)
    return Advice(held, budget, tuple(contenders), absent, winner, advice, sentence)


def beside(serving: Serving, need: Need, shape: StageShape, make_draws: MakeDraws) -> tuple[Contender, ...]:
    """What a shape would carry, and what the best one of the other kind would on as many GPUs; that one is absent when there is none."""
    load = load_of(need, shape.conditional, make_draws)
    apart = len(shape.pools) > 1
    steady_of = steady_apart if apart else steady_together
    kind = "disaggregated" if apart else "aggregated"
    rate = need.process.rate_per_s
    mine = _contest(kind, serving, need, load, [(shape, rate)], make_draws, steady_of, requests=_FEW_REQUESTS)
    if apart:
        other = _best_together(serving, need, load, shape.gpus, make_draws, requests=_FEW_REQUESTS)
    else:
        other = _best_apart(serving, need, load, shape.gpus, make_draws, requests=_FEW_REQUESTS)
    return tuple(one for one in (mine, other) if one is not None)


def _budget(serving: Serving, need: Need, make_draws: MakeDraws) -> int:
    found, reason = [], ""
    for aggregated in (False, True):
        try:
            found.append(size(serving, need, make_draws, aggregated=aggregated).gpus)
        except InvalidError as error:
            reason = error.detail
    if not found:
        raise InvalidError(reason, code="limits-not-met")
    return max(found)  # both kinds get what the dearer one needs, so that neither fails for want of GPUs


def _winner(contenders: list[Contender]) -> str:
    """Of those that keep the limits the one that carries most; a shape that misses a limit never wins."""
    fit = [one for one in contenders if one.meets]
    return max(fit, key=lambda one: one.capacity_per_s).kind if fit else ""


def _verdict(held: tuple[Condition, ...], contenders: list[Contender], winner: str) -> tuple[str, str]:
    failed = [condition.name for condition in held if not condition.holds]
    carried = {one.kind: one.capacity_per_s for one in contenders if one.meets}
    if not winner:
        return "neither", "neither keeps both limits at this load; give more GPUs, or wider limits"
    if len(carried) == 1:
        return winner, f"only {winner} keeps both limits at this load"
    gain = carried["disaggregated"] / carried["aggregated"]
    if not failed:
        return winner, f"all four conditions hold, and disaggregated carries {gain:.2f} times what aggregated does"
    if winner == "disaggregated":
        more = f"though it would carry {gain:.2f} times as much on paper"
        return "aggregated", f"not worth its trouble: {', '.join(failed)} {'do' if len(failed) > 1 else 'does'} not hold, {more}"
    return (
        "aggregated",
        f"{', '.join(failed)} {'do' if len(failed) > 1 else 'does'} not hold, and aggregated carries {1 / gain:.2f} times as much",
    )


# ---- the contest ----


def _best_apart(
    serving: Serving, need: Need, load: Load, gpus: int, make_draws: MakeDraws, *, requests: int = _REQUESTS
) -> Contender | None:
    options: list[tuple[float, Apart, Packed]] = []
    for proposal in proposals_apart(serving, load, need.limits):
        for pack in _packings(serving, proposal, gpus):
            prefill = proposal.prefill_carries_per_s(pack.prefills * pack.units, load)
            options.append((min(prefill, proposal.rate.per_s * pack.decodes * pack.units), proposal, pack))
    options.sort(key=lambda option: -option[0])
    trials = [(shape_apart(serving, proposal, pack), rate) for rate, proposal, pack in options[:_TRIALS]]
    return _contest("disaggregated", serving, need, load, trials, make_draws, steady_apart, requests=requests)


def _packings(serving: Serving, proposal: Apart, gpus: int) -> Iterator[Packed]:
    """All ways to fill `gpus` GPUs with equal units."""
    smallest = proposal.prefill_gpus + proposal.decode_gpus
    for units in range(max(1, ceil(gpus / serving.domain)), gpus // smallest + 1):
        room = min(serving.domain, gpus // units)
        for prefills in range(1, (room - proposal.decode_gpus) // proposal.prefill_gpus + 1):
            decodes = (room - prefills * proposal.prefill_gpus) // proposal.decode_gpus
            used = prefills * proposal.prefill_gpus + decodes * proposal.decode_gpus
            yield Packed(units, prefills, decodes, units * used)


def _best_together(
    serving: Serving, need: Need, load: Load, gpus: int, make_draws: MakeDraws, *, requests: int = _REQUESTS
) -> Contender | None:
    options = [
        (replace(proposal, replicas=gpus // proposal.gpus), proposal.rate.per_s * (gpus // proposal.gpus))
        for proposal in proposals_together(serving, load, need.limits)
        if proposal.gpus <= gpus
    ]
    options.sort(key=lambda option: -option[1])
    trials = [(shape_together(serving, proposal), rate) for proposal, rate in options[:_TRIALS]]
    return _contest("aggregated", serving, need, load, trials, make_draws, steady_together, requests=requests)


def _contest(
    kind: str,
    serving: Serving,
    need: Need,
    load: Load,
    trials: list[tuple[StageShape, float]],
    make_draws: MakeDraws,
    steady_of: Callable[[Serving, Load, StageShape], Steady],
    *,
    requests: int,
) -> Contender | None:
    """The trial with the largest simulated capacity, with its forecast at the load asked for."""
    best: tuple[float, StageShape] | None = None
    for shape, guess_per_s in trials:
        found = capacity_per_s(serving, need, load, shape, guess_per_s, make_draws, steady_of, requests=requests)
        if best is None or found > best[0]:
            best = (found, shape)
    if best is None:
        return None
    seen = forecast(best[1], need, steady_of(serving, load, best[1]), make_draws, requests=requests)
    return Contender(kind, best[1], seen, best[0])


def capacity_per_s(
    serving: Serving,
    need: Need,
    load: Load,
    shape: StageShape,
    guess_per_s: float,
    make_draws: MakeDraws,
    steady_of: Callable[[Serving, Load, StageShape], Steady],
    *,
    requests: int = _REQUESTS,
) -> float:
    """The largest rate at which a shape keeps the limits in simulation, to within a few percent; 0 when none that was tried is."""
    low, high = 0.0, guess_per_s * 1.3
    for _ in range(_DOUBLINGS):
        if not _keeps(serving, need, load, shape, high, make_draws, steady_of, requests):
            break
        low, high = high, high * 2
    for _ in range(_HALVINGS):
        rate = (low + high) / 2 if low else max(guess_per_s * 0.2, high * 0.6)
        kept = _keeps(serving, need, load, shape, rate, make_draws, steady_of, requests)
        low, high = (rate, high) if kept else (low, rate)
    return low


def _keeps(
    serving: Serving,
    need: Need,
    load: Load,
    shape: StageShape,
    rate_per_s: float,
    make_draws: MakeDraws,
    steady_of: Callable[[Serving, Load, StageShape], Steady],
    requests: int,
) -> bool:
    """Whether a shape keeps the limits at a rate."""
    asked = at_load(need, rate_per_s)
    busier = replace(load, rate_per_s=rate_per_s)
    steady = steady_of(serving, busier, shape)
    return overrun(busier, shape, steady) is None and play(shape, asked, steady, make_draws, requests=requests).meets(need.limits)


def at_load(need: Need, rate_per_s: float) -> Need:
    """The same requests at another rate."""
    arrivals = at_rate(need.arrivals, rate_per_s) if need.arrivals else ()
    return replace(need, process=replace(need.process, rate_per_s=rate_per_s), arrivals=arrivals)
