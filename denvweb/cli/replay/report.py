"""What the client saw."""

from __future__ import annotations

from dataclasses import dataclass, field

from metrics.domain.histogram import Histogram


@dataclass(slots=True)
class Tally:
    """Counts and histograms while a replay runs; latencies in seconds."""

    sent: int = 0
    done: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    max_late_s: float = 0.0  # how far behind its own schedule the sender fell: its figures are not open loop if this is large
    ttft: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)
    failures: dict[str, int] = field(default_factory=dict)

    def fail(self, reason: str) -> None:
        """Count a failed request under its reason."""
        self.failed += 1
        self.failures[reason] = self.failures.get(reason, 0) + 1

    @property
    def inflight(self) -> int:
        """Sent and not over."""
        return self.sent - self.done - self.failed


def _ms(histogram: Histogram, q: float) -> float | None:
    value_s = histogram.quantile(q)
    return None if value_s is None else round(value_s * 1000, 2)


def as_dict(tally: Tally, *, elapsed_s: float, endpoint: str, model: str) -> dict[str, object]:
    """The `--json` answer."""
    body: dict[str, object] = {
        "endpoint": endpoint, "model": model, "elapsed_s": round(elapsed_s, 2),
        "requests": tally.sent, "completed": tally.done, "failed": tally.failed, "failures": tally.failures,
        "prompt_tokens": tally.prompt_tokens, "output_tokens": tally.output_tokens, "max_late_ms": round(tally.max_late_s * 1000, 1),
    }  # fmt: skip
    for name in ("ttft", "itl", "e2e"):
        histogram = getattr(tally, name)
        body |= {f"{name}_p50_ms": _ms(histogram, 0.5), f"{name}_p90_ms": _ms(histogram, 0.9), f"{name}_p99_ms": _ms(histogram, 0.99)}
    return body


def as_text(body: dict[str, object]) -> str:
    """The same for people."""

    def row(name: str) -> str:
        cells = [body[f"{name}_{q}_ms"] for q in ("p50", "p90", "p99")]
        return f"{name:<5} p50 p90 p99   " + "  ".join("-" if cell is None else f"{cell:,.1f}" for cell in cells) + " ms"

    lines = [
        f"{body['requests']:,} requests in {body['elapsed_s']:,} s to {body['endpoint']}",
        f"{body['completed']:,} completed, {body['failed']:,} failed",
        row("ttft"),
        row("itl"),
        row("e2e"),
        f"{body['prompt_tokens']:,} prompt tokens, {body['output_tokens']:,} output tokens",
    ]
    failures = body["failures"]
    if isinstance(failures, dict):
        lines += [f"failed   {count} x {reason}" for reason, count in failures.items()]
    return "\n".join(lines)
