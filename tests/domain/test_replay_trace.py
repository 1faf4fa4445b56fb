"""Traces, prompts and the schedule of a replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from denvweb.cli.replay.prompts import BYTES_PER_TOKEN, prompt_of
from denvweb.cli.replay.trace import TraceRequest, read_trace, schedule
from denvweb.core.errors import InvalidError


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


MOONCAKE = """{"timestamp":3000,"input_length":1100,"output_length":5,"hash_ids":[0,1,2]}
{"timestamp":3000,"input_length":600,"output_length":9,"hash_ids":[0,7]}
{"timestamp":6000,"input_length":20,"output_length":1,"hash_ids":[9]}
"""


def test_mooncake_starts_at_zero_and_spreads_its_ties(tmp_path: Path) -> None:
    requests = read_trace(write(tmp_path, "t.jsonl", MOONCAKE))
    assert [request.input_tokens for request in requests] == [1100, 600, 20]
    assert 0 <= requests[0].at_s <= requests[1].at_s <= 3.0
    assert requests[2].at_s == 3.0


def test_azure_prompts_share_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "arrival_s,input_tokens,output_tokens\n0.0,374,44\n4.3,1396,109\n")
    first, second = read_trace(path)
    assert (first.input_tokens, second.output_tokens, second.at_s) == (374, 109, 4.3)
    assert not set(first.blocks) & set(second.blocks)
    assert len(second.blocks) == 3


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [("t.jsonl", MOONCAKE + "{}\n", ":4: "), ("t.csv", "arrival_s,input_tokens\n1,2\n", ":2: "), ("t.jsonl", "", "no request")],
)
def test_a_wrong_line_is_named(tmp_path: Path, name: str, text: str, place: str) -> None:
    with pytest.raises(InvalidError, match=place):
        read_trace(write(tmp_path, name, text))


def test_shared_blocks_are_shared_prefixes() -> None:
    one = prompt_of(TraceRequest(0, 1100, 1, (0, 1, 2)))
    two = prompt_of(TraceRequest(0, 600, 1, (0, 7)))
    assert len(one) == 1100 * BYTES_PER_TOKEN
    assert one[:2048] == two[:2048]
    assert one[2048:2100] != two[2048:2100]


def test_schedule_keeps_speed_duration_and_loops() -> None:
    requests = [TraceRequest(at, 1, 1, ()) for at in (0.0, 1.0, 2.0)]
    assert [at for at, _ in schedule(requests, speed=2, duration_s=None, loop=False)] == [0.0, 0.5, 1.0]
    looped = [at for at, _ in schedule(requests, speed=1, duration_s=5.5, loop=True)]
    assert looped == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
