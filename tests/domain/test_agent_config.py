"""Flags, nodes and GPUs of an agent."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from denvweb.core.errors import InvalidError, UnavailableError
from fleets.agent.config import Config, SimulatedFleet, parse_config, parse_simulated
from fleets.agent.gpus import smi as gpus
from fleets.agent.gpus.base import Inventory
from fleets.agent.gpus.smi import NvidiaSmi
from fleets.agent.main import main
from fleets.agent.nodes import facing_address, plan_nodes
from fleets.domain.protocol import GpuReport


def test_every_field_is_a_flag() -> None:
    text = "--control https://c --token t --fleet f --name n --gpus 4 --gpu-kind GB200 --span --port-base 1 --port-count 2 --speed 10"
    wanted = Config(
        control="https://c", token="t", fleet="f", name="n", gpus=4, gpu_kind="GB200", span=True, port_base=1, port_count=2, speed=10.0
    )  # fmt: skip
    assert parse_config(text.split()) == wanted
    assert parse_config([]) == Config()


def test_simulated_fleets_are_read() -> None:
    wanted = SimulatedFleet(fleet="gb200-use1", kind="GB200", domains=3, nodes=18, gpus=4, span=True)
    assert parse_simulated("fleet=gb200-use1,kind=GB200,domains=3,nodes=18,gpus=4,span") == wanted
    assert parse_simulated("fleet=h,kind=H200") == SimulatedFleet(fleet="h", kind="H200", domains=1, nodes=1, gpus=8)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fleet=a,kind=H200,racks=2", "unknown part racks"),
        ("fleet=a", "needs fleet="),
        ("fleet=A_b,kind=H200", "lower-case letters"),
        ("fleet=a,kind=H200,nodes=0", "nodes=0 is no whole number above 0"),
        ("fleet=a,kind=H200,gpus=four", "gpus=four is no whole number"),
    ],
)
def test_a_wrong_simulated_fleet_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(InvalidError, match=says):
        parse_simulated(text)


def test_simulated_nodes_have_names_domains_and_ports_of_their_own() -> None:
    config = parse_config(["--simulated", "fleet=g,kind=GB200,domains=3,nodes=18,gpus=4,span", "--port-base", "21000"])
    facts = [found for found, _ in plan_nodes(config)]
    assert len(facts) == 54
    assert (facts[0].name, facts[0].domain, facts[0].port_base) == ("g-d01-n01", "d01", 21000)
    assert (facts[-1].name, facts[-1].domain) == ("g-d03-n18", "d03")
    for one, following in pairwise(facts):
        assert one.port_base + one.port_count == following.port_base
    assert facts[0].port_count >= 4 * 4 * 2, "a replica's successor stands beside it for a while"


def test_nodes_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidError, match=r"need ports 65000 to 6.*, and 65535 is the last"):
        plan_nodes(parse_config(["--simulated", "fleet=g,kind=GB200,nodes=18,gpus=4", "--port-base", "65000"]))
    twice = ["--simulated", "fleet=g,kind=GB200", "--simulated", "fleet=g,kind=H200"]
    with pytest.raises(InvalidError, match="same name"):
        plan_nodes(parse_config(twice))


def test_a_machine_states_its_gpus_or_has_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    ((facts, driver),) = plan_nodes(parse_config(["--gpus", "4", "--gpu-kind", "GB200", "--name", "n1", "--fleet", "f"]))
    assert (facts.name, facts.domain, facts.gpus, facts.gpu_kind, facts.host, facts.simulated) == (
        "n1",
        "n1",
        4,
        "GB200",
        "127.0.0.1",
        False,
    )
    assert driver.read(()) == tuple(GpuReport(index) for index in range(4))
    monkeypatch.setattr(NvidiaSmi, "find", lambda: None)
    with pytest.raises(InvalidError, match="pass --gpus and --gpu-kind"):
        plan_nodes(Config())


def test_nvidia_smi_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        "*index,name) printf '0, NVIDIA H100 80GB HBM3\\n1, NVIDIA H100 80GB HBM3\\n';;\n"
        "*uuid,ecc*) printf '0, GPU-a, 0\\n1, GPU-b, 2\\n';;\n"
        "*) printf 'GPU-a, 999999999, 1024\\nGPU-a, [N/A], 7\\n';;\n"
        "esac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    smi = NvidiaSmi.find()
    assert smi is not None
    assert smi.inventory() == Inventory(kind="H100", count=2)
    healthy, broken = smi.read(())
    assert healthy == GpuReport(0, foreign_bytes=1024 * 2**20)
    assert (broken.healthy, broken.detail) == (False, "2 uncorrected memory errors since the driver was loaded")
    tool.write_text("#!/bin/sh\nexit 9\n")
    with pytest.raises(UnavailableError, match="nvidia-smi"):
        smi.inventory()


def test_our_own_processes_are_not_foreign() -> None:
    rows = [["0", "GPU-a", "0"]]
    apps = [["GPU-a", "10", "100"], ["GPU-a", "11", "50"]]
    assert gpus.gpu_reports(rows, apps, {10})[0].foreign_bytes == 50 * 2**20


def test_gpu_kinds() -> None:
    names = ["NVIDIA GB200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB"]
    assert [gpus.gpu_kind(name) for name in names] == ["GB200", "H100", "A100", "V100"]


def test_the_address_faces_the_control_plane() -> None:
    assert facing_address("http://127.0.0.1:8080") == "127.0.0.1"


@pytest.mark.parametrize(
    ("flags", "status", "says"),
    [
        (["--gpus", "4", "--gpu-kind", "GB200", "--name", "n1"], 1, "n1 has not joined yet: pass --token or --token-file"),
        (["--control", "ftp://x"], 2, "must start with http"),
        (["--speed", "0"], 2, "above 0"),
        (["--state-dir", "/proc/nowhere"], 1, "cannot use the state folder /proc/nowhere"),
    ],
)
def test_errors_are_one_sentence_and_a_status(
    flags: list[str], status: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--state-dir", str(tmp_path), *flags]) == status
    assert says in capsys.readouterr().err


def test_a_nodes_own_engine_commands() -> None:
    argv = ["--engine-command", "vllm=/opt/vllm/bin/vllm", "--engine-command", "sglang=podman run 'my image' python"]
    assert parse_config(argv).programs == {"vllm": ("/opt/vllm/bin/vllm",), "sglang": ("podman", "run", "my image", "python")}
    for wrong in ("llama.cpp=x", "vllm=", "vllm", "vllm='"):
        with pytest.raises(SystemExit):
            parse_config(["--engine-command", wrong])
