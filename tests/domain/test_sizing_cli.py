"""`denv size`, `denv advise` and `denv simulate` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from denvweb.cli import sizing_inputs
from denvweb.cli.main import cli
from denvweb.core.errors import DenvError
from releases.domain.spec import ReleaseFile, parse

FLASH = ["--recipe", "deepseek-v4.1-flash/deepinfer@3", "--gpu-kind", "gb200"]
CHAT = ["--isl", "4000", "--osl", "200", "--rate", "30"]
MOONCAKE = "".join(
    json.dumps({"timestamp": 50 * i, "input_length": 2100, "output_length": 40, "hash_ids": [0, 1, 2, 3, 10 + i]}) + "\n"
    for i in range(200)
)


def denv(*args: str) -> Result:
    return CliRunner().invoke(cli, args)


def test_size_says_shape_bottleneck_and_figures_beside_their_limits() -> None:
    done = denv("size", *FLASH, *CHAT, "--ttft-p99", "1500ms", "--itl-p99", "40ms", "--gpu-price", "4")
    assert done.exit_code == 0, done.output
    for words in (
        "deepseek-v4.1-flash/deepinfer@3   on GB200",
        "bottleneck  prefill:",
        "limit 1,500 ms   ok",
        "KV  ",
        "break-even",
        "cost  ",
    ):
        assert words in done.output


def test_size_writes_a_release_that_parses(tmp_path: Path) -> None:
    for extra in ([], ["--aggregated"]):
        file = tmp_path / "denv.yaml"
        done = denv("size", *FLASH, *CHAT, "--write", str(file), "--weights", "hf://deepseek-ai/x@c41a7e2", "--fleet", "gb200-use1", *extra)
        assert done.exit_code == 0, done.output
        parsed = parse(file.read_text())
        assert isinstance(parsed, ReleaseFile)
        assert parsed.stages[0].topology.mode.value == ("aggregated" if extra else "disaggregated")
        assert parsed.stages[0].alarms["ttft-p99"] == "2000ms"
        simulated = denv("simulate", "-f", str(file), "--gpu-kind", "GB200", *CHAT, "--requests", "3000", "--json")
        assert simulated.exit_code == 0, simulated.output
        assert json.loads(simulated.output)["goodput_ratio"] > 0.97


def test_json_is_json_and_the_same_seed_gives_the_same_answer() -> None:
    first, second = (denv("size", *FLASH, *CHAT, "--json", "--seed", "4").output for _ in range(2))
    assert first == second
    body = json.loads(first)
    assert body["forecast"]["meets"] is True
    assert body["forecast"]["ttft_p99"]["low"] <= body["forecast"]["ttft_p99"]["value"]


def test_a_trace_is_sized_with_its_own_prefixes(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(MOONCAKE)
    done = denv("size", *FLASH, "--trace", str(trace))
    assert done.exit_code == 0, done.output
    assert "2,100 in (97% cached), 40 out" in done.output
    assert "t.jsonl" in done.output
    faster = denv("simulate", "--shape", "1P1D", *FLASH, "--trace", str(trace), "--rate", "200", "--json")
    assert json.loads(faster.output)["span_s"] < 5.0


def test_advise_shows_every_condition_with_its_number() -> None:
    done = denv("advise", *FLASH, "--isl", "300", "--osl", "1500", "--rate", "20", "--gpus", "4")
    assert done.exit_code == 0, done.output
    for words in ("volume", "model-size", "552B parameters of 100B", "traffic-shape", "engine", "carries at most", "advice  aggregated:"):
        assert words in done.output


def test_simulate_says_what_a_failure_does() -> None:
    done = denv("simulate", "--shape", "1P2D", *FLASH, *CHAT, "--requests", "2000", "--fail", "decode:0:1@10s+20s")
    assert done.exit_code == 0, done.output
    assert " failed" in done.output
    assert "prefilled   remote" in done.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["size", *CHAT], "--recipe and --gpu-kind, or MODEL/STAGE"),
        (["size", *FLASH, "--isl", "10"], "--osl, --rate are missing"),
        (["size", *FLASH, *CHAT, "--ttft-p99", "soon"], "soon is no duration"),
        (["size", *FLASH, *CHAT, "--prefix-hit", "130%"], "is no share"),
        (["simulate", *FLASH, *CHAT, "--shape", "2X"], "`2X` is no shape"),
        (["simulate", *FLASH, *CHAT, "--shape", "0P1D"], "one replica at least"),
        (["simulate", *FLASH, *CHAT, "--shape", "1P1D", "--fail", "decode:7@1s+1s"], "no such replica in 1 unit of 1P1D"),
    ],
)
def test_a_wrong_question_is_told_what_is_wrong(args: list[str], words: str) -> None:
    done = denv(*args)
    assert done.exit_code == 2
    assert words in done.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["size", "--recipe", "deepseek-v4.1-flash/deepinfer@9", "--gpu-kind", "GB200", *CHAT], "of this one it has"),
        (["size", "--recipe", FLASH[1], "--gpu-kind", "abacus", *CHAT], "GPU kind abacus is not known; one of A100"),
        (["size", *FLASH, *CHAT, "--itl-p99", "1ms"], "ITL p99 1 ms cannot be kept"),
        (["simulate", "--shape", "1A", "--decode-gpus", "1", *FLASH, *CHAT], "the weights do not fit 1 GB200"),
        (["size", *FLASH, "--trace", "/no/such.jsonl"], "/no/such.jsonl: No such file"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(args: list[str], words: str) -> None:
    done = denv(*args)
    assert isinstance(done.exception, DenvError)
    assert words in done.exception.detail


class _Plain:
    """Attributes out of a dict."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class _Client:
    """Answers as the API does for a stage with traffic."""

    def get(self, path: str, into: type, **_: object) -> Any:
        if path.endswith("/metrics"):
            return _Plain(total=_Plain(requests=7200, per_s=20.0, tokens_in=28_800_000, tokens_out=1_440_000, cached_ratio=0.25))
        if "/releases/" in path:
            spec = {"release": {"weights": "hf://deepseek-ai/DeepSeek-V4.1-Flash-1017@c41a7e2"}}
            return _Plain(recipe="deepseek-v4.1-flash/deepinfer@3", spec=spec)
        alarms = (_Plain(metric="ttft", quantile=0.99, limit_s=1.5), _Plain(metric="itl", quantile=0.99, limit_s=0.04))
        return _Plain(release=7, fleets=("gb200-use1",), alarms=alarms, model="ds-flash", name="prod-us")

    def get_all(self, path: str, item: type, **_: object) -> Any:
        domain = _Plain(nodes=[_Plain(cells=[0] * 4)] * 18)
        return [_Plain(fleet="gb200-use1", gpu_kind="GB200", simulated=True, domains=(domain,))]


def test_a_stage_is_sized_from_what_it_measured_with_its_own_alarms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sizing_inputs, "Client", _Client)
    file = tmp_path / "next.yaml"
    done = denv("size", "ds-flash/prod-us", "--write", str(file))
    assert done.exit_code == 0, done.output
    assert "20.0 req/s   4,000 in (25% cached), 200 out   ttft p99 1,500 ms   itl p99 40 ms" in done.output
    assert "measured on ds-flash/prod-us over 1h" in done.output
    parsed = parse(file.read_text())
    assert isinstance(parsed, ReleaseFile)
    assert parsed.release.weights.endswith("@c41a7e2")
    assert parsed.stages[0].name == "prod-us"
