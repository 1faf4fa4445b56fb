"""Every command line of a vLLM recipe, read by the parser of vLLM itself."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.test_engine_commands import AGREED
from tests.vllm.world import QUIET, Tools

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def run(tools: Tools, commands: dict[str, list[str]]) -> subprocess.CompletedProcess[str]:
    argv = [str(tools.python), str(Path(__file__).parent / "parse_commands.py")]
    return subprocess.run(argv, input=json.dumps(commands), capture_output=True, text=True, env=QUIET, timeout=150, check=False)


def test_vllm_takes_every_flag(tools: Tools) -> None:
    agreed = json.loads(AGREED.read_text(encoding="utf-8"))
    commands = {name: command["argv"] for name, command in agreed.items() if command["argv"][0] == "vllm"}
    assert len(commands) > 15
    done = run(tools, commands)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    wrong = {
        "flag": ["vllm", "serve", "m", "--num-speculative-tokens", "2"],
        "role": ["vllm", "serve", "m", "--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_boss"}'],
        "key": ["vllm", "serve", "m", "--kv-events-config", '{"endpoynt": "tcp://*:1"}'],
    }
    refused = run(tools, wrong)
    assert refused.returncode == len(wrong), refused.stdout + refused.stderr[-2000:]
