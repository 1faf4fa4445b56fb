"""The goodput benchmark's own reckoning: who met the limits, the ratios, and the picture."""

from __future__ import annotations

from xml.etree import ElementTree

from denvweb.cli.replay.report import Tally
from tests.bench.goodput import ITL_LIMIT_S, LONGEST_TOKENS, TTFT_LIMIT_S, lines_of, met, ratios, requests_of, row_of
from tests.bench.goodput_plot import plot, round_step
from tests.bench.goodput_worlds import OURS


def tally(ttft_s: float, itl_s: float, *, tokens: int = 11, done: int = 1) -> Tally:
    made = Tally(sent=1, done=done, output_tokens=tokens)
    made.ttft.record(ttft_s)
    made.e2e.record(ttft_s + itl_s * (tokens - 1))
    return made


def test_a_request_counts_when_it_ends_within_both_limits() -> None:
    assert met(tally(TTFT_LIMIT_S - 0.01, ITL_LIMIT_S - 0.001))
    assert not met(tally(TTFT_LIMIT_S + 0.01, ITL_LIMIT_S - 0.001))
    assert not met(tally(TTFT_LIMIT_S - 0.01, ITL_LIMIT_S + 0.001))
    assert not met(tally(0.1, 0.01, done=0))
    assert not met(Tally(sent=1))  # it was not over in time
    assert met(tally(0.1, 0.0, tokens=1))


def test_ratios_are_to_the_best_peer_at_the_same_load() -> None:
    good, bad = tally(1, 0.02), tally(9, 0.02)
    rows = [
        row_of(OURS, 0.5, 2.0, [good, good, good, bad], 0.0, 1.0),
        row_of("smg", 0.5, 2.0, [good, good, bad, bad], 0.0, 1.0),
        row_of("vllm-router", 0.5, 2.0, [bad, bad, bad, bad], 0.0, 1.0),
        row_of(OURS, 1.0, 4.0, [bad, good], 0.0, 1.0),
        row_of("smg", 1.0, 4.0, [good, good], 0.0, 1.0),
    ]
    assert ratios(rows) == {"0.5": 1.5, "1": 0.5}
    chart = ElementTree.fromstring(plot(tuple(lines_of(rows)), x="load", y="requests/s"))
    assert sorted(text.text or "" for text in chart.iter("{http://www.w3.org/2000/svg}text"))[-2:] == ["smg", "vllm-router"]


def test_ticks_are_round() -> None:
    assert [round_step(wanted) for wanted in (0.5, 0.49, 3.0, 12.0)] == [0.5, 0.2, 2.0, 10.0]


def test_the_trace_is_stretched_to_the_rate_with_its_own_gaps() -> None:
    slow, fast = requests_of(50, 1.0), requests_of(50, 4.0)
    assert abs(slow[-1].at_s - 49) < 1e-9 and abs(fast[-1].at_s * 4 - 49) < 1e-9
    assert [one.blocks for one in slow] == [one.blocks for one in fast]
    assert all(one.input_tokens <= LONGEST_TOKENS for one in slow)
