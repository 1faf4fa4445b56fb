"""The engine's figures under vLLM's names and types, so that whatever reads a vLLM reads this."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LONG_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_XFER_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
_XFER_BYTES = tuple(float(2**power) for power in range(11, 34, 2))
_DESCRIPTORS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
_FEW = (1, 2, 5, 10, 20)

FINISHED = ("stop", "length", "abort", "error", "repetition")
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


class Histogram:
    """Cumulative buckets are made when rendered; observing is one search and three additions."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def lines(self, name: str, labels: str) -> list[str]:
        """Prometheus text."""
        out, running = [], 0
        for bound, count in zip([*(f"{float(bound)}" for bound in self.bounds), "+Inf"], self.counts, strict=True):
            running += count
            out.append(f'{name}_bucket{{le="{bound}",{labels}}} {float(running)}')
        return [*out, f"{name}_count{{{labels}}} {float(running)}", f"{name}_sum{{{labels}}} {self.total}"]


class Metrics:
    """All counters and histograms of one engine; gauges are handed in when the page is made."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.prompt_tokens_cached = 0
        self.prompt_tokens_by_source = dict.fromkeys(SOURCES, 0)
        self.generation_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.external_queries = 0
        self.external_hits = 0
        self.preemptions = 0
        self.finished = dict.fromkeys(FINISHED, 0)
        self.failed_transfers = 0
        self.failed_notifications = 0
        self.kv_expired = 0
        self.after_expiry = 0
        self.ttft = Histogram(_TTFT_S)
        self.itl = Histogram(_ITL_S)
        self.time_per_token = Histogram(_ITL_S)
        self.e2e = Histogram(_LONG_S)
        self.queue_time = Histogram(_LONG_S)
        self.inference_time = Histogram(_LONG_S)
        self.prefill_time = Histogram(_LONG_S)
        self.decode_time = Histogram(_LONG_S)
        self.request_prompt = Histogram(_TOKENS)
        self.request_generation = Histogram(_TOKENS)
        self.request_max_tokens = Histogram(_TOKENS)
        self.request_computed = Histogram(_TOKENS)
        self.request_n = Histogram(_FEW)
        self.iteration_tokens = Histogram(_ITERATION)
        self.xfer_time = Histogram(_XFER_S)
        self.xfer_post_time = Histogram((0.001, *_XFER_S))
        self.xfer_bytes = Histogram(_XFER_BYTES)
        self.xfer_descriptors = Histogram(_DESCRIPTORS)

    def render(self, model: str, gauges: dict[str, float], config_info: dict[str, str]) -> bytes:
        """The page. `gauges` are running, waiting, deferred, fetching and kv_use."""
        labels = f'engine="0",model_name="{model}"'
        page = _Page(labels)
        self._render_gauges(page, gauges)
        self._render_counters(page)
        for name, histogram in self._histograms().items():
            page.lines += [f"# TYPE vllm:{name} histogram", *histogram.lines(f"vllm:{name}", labels)]
        info = ",".join(f'{key}="{value}"' for key, value in sorted(config_info.items()))
        page.lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{info}}} 1.0", ""]
        return "\n".join(page.lines).encode()

    def _render_gauges(self, page: _Page, gauges: dict[str, float]) -> None:
        page.add("num_requests_running", "gauge", gauges["running"])
        page.add("num_requests_waiting", "gauge", gauges["waiting"] + gauges["deferred"])
        page.add_each("num_requests_waiting_by_reason", "gauge", "reason", {"capacity": gauges["waiting"], "deferred": gauges["deferred"]})
        stages = {"waiting_to_start": gauges["deferred"] - gauges["fetching"], "in_progress": gauges["fetching"], "completed_waiting": 0.0}
        page.add_each("num_requests_kv_fetch_by_stage", "gauge", "stage", stages)
        page.add_each("engine_sleep_state", "gauge", "sleep_state", {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0})
        page.add("kv_cache_usage_perc", "gauge", gauges["kv_use"])

    def _render_counters(self, page: _Page) -> None:
        page.add("prefix_cache_queries_total", "counter", self.prefix_queries)
        page.add("prefix_cache_hits_total", "counter", self.prefix_hits)
        page.add("external_prefix_cache_queries_total", "counter", self.external_queries)
        page.add("external_prefix_cache_hits_total", "counter", self.external_hits)
        page.add("num_preemptions_total", "counter", self.preemptions)
        page.add("prompt_tokens_total", "counter", self.prompt_tokens)
        page.add_each("prompt_tokens_by_source_total", "counter", "source", self.prompt_tokens_by_source)
        page.add("prompt_tokens_cached_total", "counter", self.prompt_tokens_cached)
        page.add("generation_tokens_total", "counter", self.generation_tokens)
        page.add_each("request_success_total", "counter", "finished_reason", self.finished)
        page.add("nixl_num_failed_transfers_total", "counter", self.failed_transfers)
        page.add("nixl_num_failed_notifications_total", "counter", self.failed_notifications)
        page.add("nixl_num_kv_expired_reqs_total", "counter", self.kv_expired)
        page.add("nixl_num_notifications_after_expiry_total", "counter", self.after_expiry)

    def _histograms(self) -> dict[str, Histogram]:
        return {
            "nixl_xfer_time_seconds": self.xfer_time,
            "nixl_post_time_seconds": self.xfer_post_time,
            "nixl_bytes_transferred": self.xfer_bytes,
            "nixl_num_descriptors": self.xfer_descriptors,
            "request_prompt_tokens": self.request_prompt,
            "request_generation_tokens": self.request_generation,
            "iteration_tokens_total": self.iteration_tokens,
            "request_params_n": self.request_n,
            "request_params_max_tokens": self.request_max_tokens,
            "time_to_first_token_seconds": self.ttft,
            "inter_token_latency_seconds": self.itl,
            "request_time_per_output_token_seconds": self.time_per_token,
            "e2e_request_latency_seconds": self.e2e,
            "request_queue_time_seconds": self.queue_time,
            "request_inference_time_seconds": self.inference_time,
            "request_prefill_time_seconds": self.prefill_time,
            "request_decode_time_seconds": self.decode_time,
            "request_prefill_kv_computed_tokens": self.request_computed,
        }


class _Page:
    """Lines of a metrics page."""

    def __init__(self, labels: str) -> None:
        self.labels = labels
        self.lines: list[str] = []

    def add(self, name: str, kind: str, value: float) -> None:
        """A metric with one sample."""
        self.lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{self.labels}}} {float(value)}"]

    def add_each(self, name: str, kind: str, label: str, values: dict[str, float] | dict[str, int]) -> None:
        """A metric with a sample for each value of one more label."""
        self.lines.append(f"# TYPE vllm:{name} {kind}")
        self.lines += [f'vllm:{name}{{{self.labels},{label}="{key}"}} {float(value)}' for key, value in values.items()]
