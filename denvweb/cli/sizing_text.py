"""How `size`, `advise` and `simulate` print."""

from __future__ import annotations

from denvweb.cli.output import paint, table
from denvweb.cli.sizing_inputs import Question
from denvweb.core.units import format_ratio
from fleets.domain.simulator.types import Quantiles, Result, StageShape
from fleets.domain.sizing.advise import Advice, Contender
from fleets.domain.sizing.interval import COVERED_RATIO, step_factors
from fleets.domain.sizing.types import PoolPlan, Sizing, Span


def ms(seconds: float | None) -> str:
    """`1,120`, in milliseconds."""
    return "-" if seconds is None else f"{seconds * 1000:,.0f}" if seconds >= 0.0095 else f"{seconds * 1000:.1f}"


def head(asked: Question) -> str:
    """What was asked, in two lines."""
    process, limits, serving = asked.need.process, asked.need.limits, asked.serving
    lengths = f"{process.input_tokens:,.0f} in ({process.prefix_hit:.0%} cached), {process.output_tokens:,.0f} out"
    promised = f"ttft p99 {ms(limits.ttft_s)} ms   itl p99 {ms(limits.itl_s)} ms"
    return "\n".join(
        (
            f"{asked.recipe.name}   on {serving.gpu.name}, {serving.domain} GPUs a domain",
            f"{process.rate_per_s:.1f} req/s   {lengths}   {promised}   ({asked.source})",
        )
    )


def _span(span: Span) -> str:
    return f"{ms(span.value)} ({ms(span.low)}-{ms(span.high)})"


def interval_text(shape: StageShape) -> str:
    """What the brackets mean."""
    ends = step_factors(shape.model)
    return f"in brackets: steps {ends.fast:g} to {ends.slow:g} times as long as predicted, as {COVERED_RATIO:.0%} of measured systems are"


def _pool(pool: PoolPlan) -> list[str]:
    carries = "-" if pool.carries_per_s is None else f"{pool.carries_per_s:,.1f} req/s"
    return [f"  {pool.role.value}", f"{pool.replicas} x {pool.gpus} GPUs a unit", f"carries {carries}", f"{pool.load_ratio:.0%} loaded"]


def _verdict(value: float, limit: float | None) -> str:
    if limit is None:
        return ""
    return f"limit {ms(limit)} ms   {paint('ok', 'ok') if value <= limit else paint('over', 'bad')}"


def size_text(asked: Question, found: Sizing) -> str:
    """The whole answer of `denv size`."""
    seen, limits = found.forecast, asked.need.limits
    rows = [["shape", found.shape.text, f"{found.gpus} GPUs"], *(_pool(pool) for pool in found.pools)]
    lines = [head(asked), "", table(rows), f"bottleneck  {found.bottleneck.value}: {found.why}", ""]
    rows = [
        ["ttft p50 p99", _span(seen.ttft_p50), f"{_span(seen.ttft_p99)} ms", _verdict(seen.ttft_p99.value, limits.ttft_s)],
        ["itl  p50 p99", _span(seen.itl_p50), f"{_span(seen.itl_p99)} ms", _verdict(seen.itl_p99.value, limits.itl_s)],
    ]
    lines += [table(rows), interval_text(found.shape), ""]
    good = f"{format_ratio(seen.goodput_ratio)} of requests within both limits"
    lines.append(
        f"goodput     {good}   {seen.goodput_per_gpu_s:.2f} req/s a GPU   {seen.output_tokens_per_gpu_s:,.0f} output tokens/s a GPU"
    )
    if found.kv is not None:
        kv, gb = found.kv, 1e9
        needs = f"{kv.mean_bytes_per_s / gb:.2f} GB/s from a prefill replica, {kv.burst_bytes_per_s / gb:.2f} at full speed"
        gives = f"a GPU's link gives {kv.fabric_bytes_per_s / gb:.0f} in the domain, {kv.network_bytes_per_s / gb:.0f} over the network"
        lines.append(f"KV          {needs}; {gives}   {paint('ok', 'ok') if kv.fits_fabric else paint('too slow', 'bad')}")
    if found.local_prefill_below is not None:
        lines.append(f"local       break-even at {found.local_prefill_below:,} uncached tokens: below it decode should prefill by itself")
    if found.cost is not None:
        cost = found.cost
        lines.append(f"cost        {cost.per_hour:,.2f} an hour   {cost.per_million_output_tokens:,.3f} for a million output tokens")
    return "\n".join([*lines, *(f"note        {note}" for note in found.notes)])


def advice_text(asked: Question, found: Advice) -> str:
    """The whole answer of `denv advise`."""
    rows = [[paint("ok" if one.holds else "no", "ok" if one.holds else "warn"), one.name, one.sentence] for one in found.conditions]
    lines = [head(asked), "", table(rows), ""]
    titles = [one.kind for one in found.contenders]
    body = [[f"on {found.gpus} GPUs", *titles], *([name, *(cell(one) for one in found.contenders)] for name, cell in _CELLS)]
    if titles:
        lines.append(table(body))
    lines += [f"no {kind}: {why}" for kind, why in found.absent.items()]
    return "\n".join([*lines, "", f"advice  {paint(found.advice, 'advice')}: {found.sentence}"])


_CELLS = (
    ("shape", lambda one: one.shape.text),
    ("replicas of", lambda one: " + ".join(f"{pool.gpus}" for pool in one.shape.pools) + " GPUs"),
    ("chunk of prefill", lambda one: f"{one.shape.pools[0].max_batched_tokens:,} tokens"),
    ("ttft p50 p99", lambda one: f"{ms(one.forecast.ttft_p50.value)}  {ms(one.forecast.ttft_p99.value)} ms"),
    ("itl  p50 p99", lambda one: f"{ms(one.forecast.itl_p50.value)}  {ms(one.forecast.itl_p99.value)} ms"),
    ("within the limits", lambda one: _meets(one)),
    ("carries at most", lambda one: f"{one.capacity_per_s:,.1f} req/s"),
    ("goodput", lambda one: f"{one.goodput_per_gpu_s:.2f} req/s a GPU"),
)


def _meets(one: Contender) -> str:
    return paint("yes", "ok") if one.meets else paint("no", "bad")


def _row(name: str, values: Quantiles) -> list[str]:
    return [name, *(ms(value) for value in (values.mean_s, values.p50_s, values.p90_s, values.p99_s)), f"{values.n:,}"]


def result_text(title: str, shape: StageShape, result: Result, took_s: float) -> str:
    """The whole answer of `denv simulate`."""
    counts = [f"{result.requests:,} requests over {result.span_s:,.0f} s", f"{result.completed:,} answered"]
    counts += [f"{result.rejected:,} refused (429)"] if result.rejected else []
    counts += [f"{result.failed:,} failed"] if result.failed else []
    rows = [["ms", "mean", "p50", "p90", "p99", "n"], _row("ttft", result.ttft), _row("itl", result.itl), _row("e2e", result.e2e)]
    reasons = "  ".join(f"{why} {count:,}" for why, count in result.reasons.items())
    phases = "  ".join(f"{name} {ms(value)}" for name, value in result.phases_mean_s.items())
    speed = f"{result.output_tokens_per_s:,.0f} output tokens/s"
    pools = [
        [f"{use.role.value}", f"{use.replicas} replicas", f"busy {use.busy_ratio:.0%}", f"KV at most {use.kv_ratio_max:.0%}",
         f"batch {use.batch_mean:.1f}", f"{use.preemptions:,} set back"]
        for use in result.pools
    ]  # fmt: skip
    return "\n".join(
        (
            f"{title}   {shape.text}   {shape.gpus:,} GPUs   {shape.gpu.name}",
            "   ".join(counts),
            "",
            table(rows, right=(1, 2, 3, 4, 5)),
            f"ttft is     {phases} ms on average",
            f"prefilled   {reasons}",
            f"cached      {format_ratio(result.cached_ratio)} of prompt tokens",
            f"goodput     {format_ratio(result.goodput_ratio)} of requests within both limits   {speed}",
            "",
            table(pools),
            f"simulated in {took_s:.1f} s, {result.requests / max(took_s, 1e-9):,.0f} requests a second",
        )
    )
