"""`size`: how many prefill and decode replicas, in how many units, and what users would see."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, isfinite

from denvweb.core.errors import InvalidError
from fleets.domain.simulator.types import Limits, PoolShape, Result, StageShape
from fleets.domain.sizing.forecast import Steady, forecast, overrun, play
from fleets.domain.sizing.load import Load, load_of, nearly_longest
from fleets.domain.sizing.rates import steps_of
from fleets.domain.sizing.shapes import (
    Apart,
    Together,
    more_decode,
    more_prefill,
    packed,
    proposals_apart,
    proposals_together,
    shape_apart,
    shape_together,
)
from fleets.domain.sizing.threshold import bearable, break_even_tokens
from fleets.domain.sizing.types import Cost, Forecast, KvNeed, MakeDraws, Need, PoolPlan, Serving, Sizing
from fleets.domain.timing import LINK_RATIO, decode_step_s, prefill_s
from fleets.domain.types import Role

_TRIES = 14  # shapes that are simulated before giving up
_REQUESTS = 3000
_ALONE_RATIO = 0.7  # of the TTFT limit that a long prompt may take by itself: KV, a step and some waiting come on top


def size(serving: Serving, need: Need, make_draws: MakeDraws, *, gpu_price: float | None = None, aggregated: bool = False) -> Sizing:
    """The cheapest shape found that keeps the limits in simulation. InvalidError when no shape can, with the reason.

    `gpu_price` is for one GPU and hour. `aggregated` asks for a shape without roles.
    """
    serving = bearable(serving, need.limits)
    load = load_of(need, serving.conditional, make_draws)
    if aggregated:
        return _together(serving, need, load, make_draws, gpu_price)
    if serving.cannot_disaggregate:
        raise InvalidError(f"{serving.cannot_disaggregate}; size it as aggregated", code="engine-cannot-disaggregate")
    return _apart(serving, need, load, make_draws, gpu_price)


def batch_at(serving: Serving, load: Load, gpus: int, rate_per_s: float, *, prefill_part_s: float = 0.0) -> float:
    """Sequences that a replica decodes at once at a load: Little's law, with the step's own dependence on them."""
    steps, batch = steps_of(serving, gpus), 1.0
    for _ in range(60):
        step_s = steps.decode_s(max(1, round(batch)), batch * load.context_tokens)
        step_s /= max(0.05, 1.0 - rate_per_s * prefill_part_s)
        fresh = min(8192.0, rate_per_s * load.output_tokens * step_s)
        if abs(fresh - batch) < 0.01 * batch:
            break
        batch = (batch + fresh) / 2
    return batch


# ---- with roles ----


def _apart(serving: Serving, need: Need, load: Load, make_draws: MakeDraws, price: float | None) -> Sizing:
    options = proposals_apart(serving, load, need.limits)
    if not options:
        raise _impossible(serving, need, load, Role.DECODE)
    ranked = sorted(options, key=lambda option: (packed(serving, option).gpus, packed(serving, option).units))
    best: tuple[Apart, StageShape] | None = None
    for option in ranked[:2]:  # the closed form is not exact: the runner-up may turn out cheaper
        found = _grown(serving, need, load, option, make_draws)
        if found is not None and (best is None or found[1].gpus < best[1].gpus):
            best = found
    if best is None:
        _refuse_long(serving, need, load, max(option.prefill_gpus for option in options))
        raise InvalidError(
            f"no shape was found that keeps the limits in simulation; the last had {packed(serving, ranked[0]).gpus} GPUs. "
            "The traffic may be too bursty for them: a p99 over a whole trace includes its worst minute.",
            code="limits-not-met",
        )
    proposal, shape = _trimmed(serving, need, load, *best, make_draws)
    return _answer_apart(serving, need, load, proposal, shape, make_draws, price)


def steady_apart(serving: Serving, load: Load, shape: StageShape) -> Steady:
    """What a shape with roles is decoding at any time."""
    pool = shape.pools[-1]
    rate = load.rate_per_s / (shape.units * pool.replicas)
    batch = batch_at(serving, load, pool.gpus, rate)
    return Steady(ceil(batch), round(load.input_tokens), max(2, round(load.output_tokens)))


def _grown(serving: Serving, need: Need, load: Load, proposal: Apart, make_draws: MakeDraws) -> tuple[Apart, StageShape] | None:
    """Add replicas to the pool that misses its limit until none does."""
    for _ in range(_TRIES):
        shape = shape_apart(serving, proposal, packed(serving, proposal))
        steady = steady_apart(serving, load, shape)
        full = overrun(load, shape, steady)
        if full is not None:
            proposal = more_prefill(proposal, 1.0) if full is Role.PREFILL else more_decode(proposal, 1.0)
            continue
        result = play(shape, need, steady, make_draws, requests=_REQUESTS)
        if result.meets(need.limits):
            return proposal, shape
        proposal = _more(need, load, proposal, result)
    return None


def _more(need: Need, load: Load, proposal: Apart, result: Result) -> Apart:
    """More of the pool whose limit was missed, and the more the further it was missed."""
    itl_over, ttft_over = _over(result.itl.p99_s, need.limits.itl_s), _over(result.ttft.p99_s, need.limits.ttft_s)
    phases = result.phases_mean_s
    at_prefill = bool(load.remote) and phases["queue"] + phases["prefill"] >= phases["kv"] + phases["first-step"]
    if itl_over > 1.0:
        proposal = more_decode(proposal, itl_over)
    if ttft_over > 1.0 or itl_over <= 1.0:
        proposal = more_prefill(proposal, ttft_over) if at_prefill else more_decode(proposal, ttft_over)
    return proposal


def _over(value: float | None, limit: float | None) -> float:
    """How many times a figure is over its limit."""
    return value / limit if value and limit else 0.0


def _trimmed(
    serving: Serving, need: Need, load: Load, proposal: Apart, shape: StageShape, make_draws: MakeDraws
) -> tuple[Apart, StageShape]:
    """Take replicas away while the limits are still kept."""
    for _ in range(_TRIES):
        smaller = [
            replace(proposal, prefills=proposal.prefills - 1),
            replace(proposal, decodes=proposal.decodes - 1),
        ]
        for option in smaller:
            if option.prefills < 1 or option.decodes < 1:
                continue
            trial = shape_apart(serving, option, packed(serving, option))
            if trial.gpus < shape.gpus and _keeps(serving, need, load, trial, make_draws):
                proposal, shape = option, trial
                break
        else:
            return proposal, shape
    return proposal, shape


def _keeps(serving: Serving, need: Need, load: Load, shape: StageShape, make_draws: MakeDraws) -> bool:
    """Whether a shape with roles keeps the limits, and could for ever."""
    steady = steady_apart(serving, load, shape)
    return overrun(load, shape, steady) is None and play(shape, need, steady, make_draws, requests=_REQUESTS).meets(need.limits)


def _answer_apart(
    serving: Serving, need: Need, load: Load, proposal: Apart, shape: StageShape, make_draws: MakeDraws, price: float | None
) -> Sizing:
    steady = steady_apart(serving, load, shape)
    before = play(shape, need, steady, make_draws, requests=_REQUESTS)
    threshold = break_even_tokens(
        shape,
        batch=steady.batch,
        context_tokens=load.context_tokens,
        queue_s=before.phases_mean_s["queue"],
        itl_limit_s=need.limits.itl_s,
    )
    trial = replace(shape, conditional=replace(shape.conditional, local_prefill_below=threshold))
    after = play(trial, need, steady, make_draws, requests=_REQUESTS)
    if after.meets(need.limits) and after.goodput_ratio >= before.goodput_ratio:
        shape = trial
    seen = forecast(shape, need, steady, make_draws, requests=_REQUESTS)
    prefill, decode = shape.pools
    carries = {
        Role.PREFILL: proposal.prefill_carries_per_s(prefill.replicas * shape.units, load),
        Role.DECODE: proposal.rate.per_s * decode.replicas * shape.units,
    }
    pools = tuple(_pool_plan(pool, carries[pool.role], load) for pool in shape.pools)
    bottleneck = max(pools, key=lambda pool: pool.load_ratio)
    return Sizing(
        shape=shape,
        pools=pools,
        gpus=shape.gpus,
        bottleneck=bottleneck.role,
        why=_why_apart(bottleneck.role, carries, load, proposal, need.limits),
        forecast=seen,
        kv=_kv_need(serving, load, shape),
        local_prefill_below=threshold,
        cost=_cost(price, shape, need, seen),
        notes=_notes(seen, threshold, shape),
    )


def _pool_plan(pool: PoolShape, carries_per_s: float, load: Load) -> PoolPlan:
    return PoolPlan(
        role=pool.role,
        replicas=pool.replicas,
        gpus=pool.gpus,
        max_sequences=pool.max_sequences,
        max_batched_tokens=pool.max_batched_tokens,
        carries_per_s=carries_per_s if isfinite(carries_per_s) else None,
        load_ratio=load.rate_per_s / carries_per_s,
    )


def _why_apart(bottleneck: Role, carries: dict[Role, float], load: Load, proposal: Apart, limits: Limits) -> str:
    decode_by = {
        "itl": f"ITL p99 {_ms(limits.itl_s)}",
        "kv": "what their KV memory holds",
        "batch": "the largest batch",
        "ttft": f"TTFT p99 {_ms(limits.ttft_s)}",
    }[proposal.rate.bound]
    if not load.remote:
        return f"prompts are short or cached and are prefilled by decode, which carries {carries[Role.DECODE]:.1f} req/s by {decode_by}"
    prefill = f"prefill carries {carries[Role.PREFILL]:.1f} req/s by TTFT p99 {_ms(limits.ttft_s)}"
    decode = f"decode carries {carries[Role.DECODE]:.1f} req/s by {decode_by}"
    first, second = (prefill, decode) if bottleneck is Role.PREFILL else (decode, prefill)
    return f"{first}; {second}; the load is {load.rate_per_s:.1f}"


def _kv_need(serving: Serving, load: Load, shape: StageShape) -> KvNeed:
    """KV on the links of one prefill replica; a transfer goes over one GPU's link."""
    pool = shape.pools[0]
    per_token = serving.model.kv_bytes_per_token
    uncached = sum(prompt - held for prompt, held in load.remote) / len(load.remote) if load.remote else 0.0
    mean = load.rate_per_s * load.remote_ratio * uncached * per_token / (shape.units * pool.replicas)
    chunk = pool.max_batched_tokens
    burst = chunk * per_token / prefill_s(serving.model, serving.gpu, pool.gpus, chunk, 0)
    gpu = serving.gpu
    return KvNeed(mean, burst, gpu.domain_bytes_per_s * LINK_RATIO, gpu.network_bytes_per_s * LINK_RATIO)


def _notes(seen: Forecast, threshold: int, shape: StageShape) -> tuple[str, ...]:
    notes, reasons = [], seen.result.reasons
    local = sum(count for reason, count in reasons.items() if reason != "remote") / max(1, sum(reasons.values()))
    if local:
        notes.append(f"{local:.0%} of the requests are prefilled by decode itself")
    if shape.conditional.local_prefill_below != threshold:
        notes.append(
            f"the break-even of {threshold:,} tokens misses a limit or loses requests; {shape.conditional.local_prefill_below:,} was kept"
        )
    return tuple(notes)


# ---- without roles ----


def _together(serving: Serving, need: Need, load: Load, make_draws: MakeDraws, price: float | None) -> Sizing:
    options = proposals_together(serving, load, need.limits)
    if not options:
        raise _impossible(serving, need, load, Role.AGGREGATED)
    ranked = sorted(options, key=lambda option: (option.replicas * option.gpus, -option.rate.per_s / option.gpus))
    best: tuple[Together, StageShape] | None = None
    for option in ranked[:3]:
        found = _grown_together(serving, need, load, option, make_draws)
        if found is not None and (best is None or found[1].gpus < best[1].gpus):
            best = found
    if best is None:
        raise InvalidError("no aggregated shape was found that keeps the limits in simulation", code="limits-not-met")
    proposal, shape = best
    seen = forecast(shape, need, steady_together(serving, load, shape), make_draws, requests=_REQUESTS)
    carries = proposal.rate.per_s * shape.units
    plan = _pool_plan(shape.pools[0], carries, load)
    why = {"itl": "ITL p99", "ttft": "TTFT p99", "kv": "KV memory", "batch": "the largest batch"}[proposal.rate.bound]
    return Sizing(
        shape=shape,
        pools=(plan,),
        gpus=shape.gpus,
        bottleneck=Role.AGGREGATED,
        why=f"the replicas carry {carries:.1f} req/s by {why}; the load is {load.rate_per_s:.1f}",
        forecast=seen,
        kv=None,
        local_prefill_below=None,
        cost=_cost(price, shape, need, seen),
    )


def steady_together(serving: Serving, load: Load, shape: StageShape) -> Steady:
    """What an aggregated shape is decoding at any time, while its prefills slow it down."""
    pool = shape.pools[0]
    steps = steps_of(serving, pool.gpus)
    part_s = sum(steps.prefill_part_s(max(1, prompt - held), held) for prompt, held in load.pairs) / len(load.pairs)
    batch = batch_at(serving, load, pool.gpus, load.rate_per_s / shape.units, prefill_part_s=part_s)
    return Steady(ceil(batch), round(load.input_tokens), max(2, round(load.output_tokens)))


def _grown_together(
    serving: Serving, need: Need, load: Load, proposal: Together, make_draws: MakeDraws
) -> tuple[Together, StageShape] | None:
    for _ in range(_TRIES):
        shape = shape_together(serving, proposal)
        steady = steady_together(serving, load, shape)
        if overrun(load, shape, steady) is None and play(shape, need, steady, make_draws, requests=_REQUESTS).meets(need.limits):
            return proposal, shape
        proposal = replace(proposal, replicas=max(proposal.replicas + 1, ceil(proposal.replicas * 1.15)))
    return None


# ---- both ----


def _impossible(serving: Serving, need: Need, load: Load, role: Role) -> InvalidError:
    """Why no shape can do it: the model fits nowhere, or a limit is under what a request alone takes."""
    model, gpu, domain = serving.model, serving.gpu, serving.domain
    alone_s = min(decode_step_s(model, gpu, gpus, 1, round(load.context_tokens)) for gpus in _sizes(domain))
    if need.limits.itl_s is not None and alone_s > need.limits.itl_s:
        detail = f"ITL p99 {_ms(need.limits.itl_s)} cannot be kept: one sequence alone takes {_ms(alone_s)} a token on {gpu.name}"
        return InvalidError(detail, code="limit-impossible")
    prompt, held = nearly_longest(load.pairs)
    first_s = min(prefill_s(model, gpu, gpus, prompt - held, held) for gpus in _sizes(domain))
    if need.limits.ttft_s is not None and first_s > 0.8 * need.limits.ttft_s:
        detail = (
            f"TTFT p99 {_ms(need.limits.ttft_s)} cannot be kept: a prompt of {prompt:,} tokens, which one in twenty exceeds, "
            f"takes {_ms(first_s)} to prefill on {max(_sizes(domain))} {gpu.name} alone"
        )
        return InvalidError(detail, code="limit-impossible")
    detail = f"no {role.value} replica inside a domain of {domain} {gpu.name} holds the model and keeps the limits"
    return InvalidError(detail, code="no-shape")


def _refuse_long(serving: Serving, need: Need, load: Load, gpus: int) -> None:
    """Refuse when one prompt in a hundred takes longer by itself than TTFT may: no number of replicas helps."""
    longest = sorted(load.remote or load.pairs, key=lambda pair: pair[0] - pair[1])
    prompt, held = longest[int(0.99 * (len(longest) - 1))]
    alone_s = prefill_s(serving.model, serving.gpu, gpus, prompt - held, held)
    if need.limits.ttft_s is not None and alone_s > _ALONE_RATIO * need.limits.ttft_s:
        detail = (
            f"TTFT p99 {_ms(need.limits.ttft_s)} cannot be kept: a prompt of {prompt:,} tokens, which one in a hundred exceeds, takes "
            f"{_ms(alone_s)} to prefill on the {gpus} {serving.gpu.name} that a prefill replica can have beside decode in a domain"
        )
        raise InvalidError(detail, code="limit-impossible")


def _sizes(domain: int) -> list[int]:
    return [2**power for power in range(12) if 2**power <= domain]


def _cost(price: float | None, shape: StageShape, need: Need, seen: Forecast) -> Cost | None:
    if price is None:
        return None
    per_hour = price * shape.gpus
    requests_per_hour = need.process.rate_per_s * seen.goodput_ratio * 3600
    if requests_per_hour <= 0:
        return None
    out, both = need.process.output_tokens, need.process.input_tokens + need.process.output_tokens
    return Cost(per_hour, per_hour / (requests_per_hour * out) * 1e6, per_hour / (requests_per_hour * both) * 1e6)


def _ms(seconds: float | None) -> str:
    return "any" if seconds is None else f"{seconds * 1000:,.0f} ms"
