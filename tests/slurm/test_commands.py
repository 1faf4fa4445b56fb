"""What Slurm is told, word by word, and how its answers are read; also where there is no Slurm."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from denvweb.core.errors import InvalidError
from fleets.agent.config import parse_config
from fleets.agent.launchers.base import LaunchError, LaunchOrder
from fleets.agent.launchers.slurm import SlurmLauncher, SlurmSettings, job_script, parse_states, rank_script, sbatch_words
from fleets.agent.nodes import plan_nodes
from fleets.agent.slurm_nodes import SlurmNode, parse_nodes

ENV = {"HF_TOKEN": "hf_it's secret", "CUDA_VISIBLE_DEVICES": "0,1", "PATH": "/bin", "BASH_FUNC_x%%": "()"}
ORDER = LaunchOrder("k-1", ("vllm", "serve", "a b"), ENV, Path("/s/logs/k-1.log"), replica="r-1", node="n1", index=0, count=2, gpus=4)
SECOND = replace(ORDER, rank_id="k-2", node="n0", index=1)


def test_a_gang_is_one_job_and_no_secret_is_a_word_of_it() -> None:
    words = sbatch_words([ORDER, SECOND], Path("/s/slurm/r-1"), SlurmSettings("gpu", "ml", ("--qos=high",)), "denv:/s")
    assert words == [
        "sbatch",
        "--parsable",
        "--job-name=denv-r-1",
        "--comment=denv:/s",
        "--no-requeue",
        "--export=NIL",
        "--partition=gpu",
        "--account=ml",
        "--nodes=2",
        "--nodelist=n0,n1",
        "--ntasks-per-node=1",
        "--gres=gpu:4",
        "--output=/dev/null",
        "--error=/dev/null",
        "--qos=high",
        "/s/slurm/r-1/job.sh",
    ]
    with pytest.raises(LaunchError, match="one rank a node"):
        sbatch_words([ORDER, replace(SECOND, node="n1")], Path("/s"), SlurmSettings(), "m")
    with pytest.raises(LaunchError, match="equal GPUs"):
        sbatch_words([ORDER, replace(SECOND, gpus=2)], Path("/s"), SlurmSettings(), "m")


def test_a_ranks_script_runs_as_a_shell_reads_it(tmp_path: Path) -> None:
    engine = ("sh", "-c", "trap 'exit 7' TERM; echo \"$HF_TOKEN|$CUDA_VISIBLE_DEVICES|$1\"; while :; do sleep 0.05; done", "x", "a b")
    order = replace(ORDER, argv=engine, log_path=tmp_path / "k.log")
    script = tmp_path / "n1.sh"
    script.write_text(rank_script(order, tmp_path))
    process = subprocess.Popen(["sh", str(script)], env={"CUDA_VISIBLE_DEVICES": "2,3", "PATH": "/bin:/usr/bin"})
    while not (order.log_path.exists() and order.log_path.read_text()):
        pass
    assert order.log_path.read_text() == "hf_it's secret|2,3|a b\n"  # Slurm's own GPUs, not denv's numbers
    process.terminate()
    assert process.wait(10) == 7  # it was asked to end, and ended as it likes
    assert (tmp_path / "n1.exit").read_text() == "7\n"
    assert "srun" in job_script(tmp_path)


def test_slurms_answers_are_read() -> None:
    assert parse_states("12|RUNNING\n13|COMPLETED\nslurm_load_jobs error\n") == {12: "RUNNING", 13: "COMPLETED"}
    text = (
        "NodeName=n0 Arch=x86_64 Gres=gpu:h200:8 NodeAddr=10.0.0.7 NodeHostName=a State=IDLE Partitions=gpu,all \n"
        "NodeName=c1 Gres=(null) NodeAddr=10.0.0.8 Partitions=cpu \nNodeName=n1 Gres=gpu:4(S:0) NodeAddr=b Partitions=gpu \n"
    )
    assert parse_nodes(text) == [
        (SlurmNode("n0", "10.0.0.7", 8, "h200"), "gpu,all"),
        (SlurmNode("c1", "10.0.0.8", 0, ""), "cpu"),
        (SlurmNode("n1", "b", 4, ""), "gpu"),
    ]


async def test_without_slurm_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    launcher = SlurmLauncher(tmp_path, SlurmSettings())
    with pytest.raises(LaunchError, match="sbatch is not on the path: is Slurm installed here"):
        await launcher.launch(replace(ORDER, count=1), lambda code: None)
    with pytest.raises(InvalidError, match="scontrol is not on the path"):
        plan_nodes(parse_config(["--launcher", "slurm"]))
    with pytest.raises(InvalidError, match="it is one of process, slurm"):
        parse_config(["--launcher", "nomad"])


async def test_a_gang_that_is_not_complete_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleets.agent.launchers.slurm.GATHER_S", 0.05)
    with pytest.raises(LaunchError, match="1 of 2 ranks of the replica were ordered within 0 s"):
        await SlurmLauncher(tmp_path, SlurmSettings()).launch(ORDER, lambda code: None)
