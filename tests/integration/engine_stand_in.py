"""Stands in for an engine that cannot run here: takes its command line, is ready after a while, tells its figures in its words.

`engine_stand_in.py ENGINE [the engine's own command line]`. It knows what its engine's server answers, and no more.
"""

from __future__ import annotations

import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

LOADS_S = 0.4
PAGES = {
    "sglang": (
        "/ready",
        "/metrics",
        'sglang:num_running_reqs{model_name="m"} 3.0\nsglang:num_queue_reqs{model_name="m"} 2.0\n'
        'sglang:token_usage{model_name="m"} 0.25\nsglang:cache_hit_rate{model_name="m"} 0.5\n'
        'sglang:num_transfer_failed_reqs_total{model_name="m"} 1.0\n',
    ),
    "trtllm": (
        "/health",
        "/prometheus/metrics",
        'trtllm_num_requests_running{model_name="m",engine_type="pytorch"} 3.0\n'
        'trtllm_num_requests_waiting{model_name="m",engine_type="pytorch"} 2.0\n'
        'trtllm_kv_cache_utilization{model_name="m",engine_type="pytorch"} 0.25\n'
        'trtllm_kv_cache_hit_rate{model_name="m",engine_type="pytorch"} 0.5\n',
    ),
    "deepinfer": (
        "/health",
        "/metrics",
        'vllm:num_requests_running{engine="0",model_name="m"} 3.0\nvllm:num_requests_waiting{engine="0",model_name="m"} 2.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n',
    ),
}


def main(engine: str, words: list[str]) -> None:
    ready_path, metrics_path, page = PAGES[engine]
    started_s = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            loading = time.monotonic() < started_s + LOADS_S
            known = {ready_path: (503 if loading else 200, ""), metrics_path: (200, page)}
            status, text = known.get(self.path, (404, ""))
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    HTTPServer((words[words.index("--host") + 1], int(words[words.index("--port") + 1])), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
