"""GPUs by NVML's C functions, and by the simulated driver: who they are, how they are, and what a restart must not forget."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denvweb.core.errors import UnavailableError
from fleets.agent.config import parse_config
from fleets.agent.gpus.health import assigned
from fleets.agent.gpus.memory import GpuMemory
from fleets.agent.gpus.nvml import Nvml
from fleets.agent.gpus.simulated import FaultFile, SimulatedGpus
from fleets.agent.nodes import plan_nodes
from fleets.domain.protocol import GpuReport
from tests.nvml_fake import UNKNOWN, FakeGpu, FakeNvml

CLUSTER = bytes.fromhex("c0ffee00112233445566778899aabbcc")
JOINED = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED


def node_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *gpus: FakeGpu, boot: str = "boot1") -> tuple[FakeNvml, Nvml]:
    fake = FakeNvml(list(gpus))
    fake.install(monkeypatch)
    driver = Nvml.find(GpuMemory(tmp_path / "gpus.json", boot))
    assert driver is not None
    driver.inventory()
    return fake, driver


def said(driver: Nvml, *sessions: int) -> list[str]:
    return [report.detail for report in driver.read(sessions)]


def test_a_machine_is_found_with_its_fabric_its_memory_and_its_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    FakeNvml([FakeGpu(f"GPU-{n}", cluster=CLUSTER, clique=7, fabric_state=JOINED) for n in "abcd"]).install(monkeypatch)
    flags = ["--fleet", "f", "--name", "n1", "--state-dir", str(tmp_path)]
    ((facts, driver),) = plan_nodes(parse_config(flags))
    assert (facts.gpus, facts.gpu_kind, facts.domain, facts.fabric_spans_nodes) == (4, "GB200", "nvl-c0ffee00-7", True)
    assert (facts.gpu_memory_bytes, facts.driver_version, facts.cuda_version) == (192 * 10**9, "580.95.05", "13.0")
    assert driver.read(()) == tuple(GpuReport(index) for index in range(4))
    ((said_by_flag, _),) = plan_nodes(parse_config([*flags, "--domain", "d01"]))
    assert said_by_flag.domain == "d01"


def test_without_a_fabric_the_node_is_its_own_domain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    FakeNvml([FakeGpu("GPU-a", name="NVIDIA H100 80GB HBM3", fabric_state=JOINED)]).install(monkeypatch)  # HGX: joined, and all zeros
    ((facts, _),) = plan_nodes(parse_config(["--name", "n1", "--state-dir", str(tmp_path)]))
    assert (facts.gpu_kind, facts.domain, facts.fabric_spans_nodes) == ("H100", "n1", False)


def test_mixed_kinds_and_a_driver_that_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeNvml([FakeGpu("GPU-a"), FakeGpu("GPU-b", name="NVIDIA H200")])
    fake.install(monkeypatch)
    driver = Nvml.find(GpuMemory(tmp_path / "gpus.json", "b"))
    assert driver is not None
    with pytest.raises(UnavailableError, match="NVML lists GB200, H200: a node needs GPUs of one kind"):
        driver.inventory()
    fake.loaded = False
    with pytest.raises(UnavailableError, match="the GPU driver does not answer"):
        driver.read(())
    assert Nvml.find(GpuMemory(tmp_path / "gpus.json", "b")) is None


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        (FakeGpu("GPU-a", ecc=2), "2 uncorrected memory errors since the driver was loaded"),
        (FakeGpu("GPU-a", rows=(1, 1, 1, 0)), "faulty memory is to be set aside at the next reset of the GPU"),
        (FakeGpu("GPU-a", rows=(1, 1, 0, 1)), "a memory row could not be remapped: the GPU is to be replaced"),
        (FakeGpu("GPU-a", rows=None, retiring=1), "faulty memory is to be set aside at the next reset of the GPU"),
        (FakeGpu("GPU-a", mig=1), "cut up by MIG, and a replica takes whole GPUs (`nvidia-smi -mig 0`)"),
        (
            FakeGpu("GPU-a", cluster=CLUSTER, fabric_state=pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS),
            "it has not joined its NVLink fabric yet",
        ),
        (FakeGpu("GPU-a", cluster=CLUSTER, fabric_state=JOINED, fabric_status=999), "its NVLink fabric could not be joined (status 999)"),
        (FakeGpu("GPU-a", rows=(8, 0, 0, 0)), ""),  # corrected errors are no trouble
        (FakeGpu("GPU-a", used_bytes=None, ecc=None, rows=None, mig=None), ""),  # N/A is no trouble
    ],
)
def test_each_trouble_takes_a_gpu_out(gpu: FakeGpu, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, driver = node_of(monkeypatch, tmp_path, gpu)
    assert driver.read(()) == (GpuReport(0, healthy=not says, detail=says),)


def test_an_xid_is_kept_until_the_machine_boots_and_an_applications_own_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = FakeGpu("GPU-a"), FakeGpu("GPU-b")
    fake, driver = node_of(monkeypatch, tmp_path, first, second)
    fake.xids = [(second, 31), (second, 74), (first, 13)]
    assert said(driver) == ["", "Xid 74 (NVLink error)"]
    _, restarted = node_of(monkeypatch, tmp_path, first, second)
    assert said(restarted) == ["", "Xid 74 (NVLink error)"]
    _, rebooted = node_of(monkeypatch, tmp_path, first, second, boot="boot2")
    assert said(rebooted) == ["", ""]


def test_a_gpu_that_falls_off_the_bus_keeps_its_number_and_moves_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus = [FakeGpu(f"GPU-{n}") for n in "abc"]
    _, driver = node_of(monkeypatch, tmp_path, *gpus)
    gpus[1].lost = True
    assert said(driver) == ["", "GPU-b is not on the bus any more", ""]
    _, rebooted = node_of(monkeypatch, tmp_path, gpus[0], gpus[2], boot="boot2")  # not enumerated any more: NVML's 1 is the third now
    assert rebooted.inventory().count == 3
    assert said(rebooted) == ["", "GPU-b is not on the bus any more", ""]
    assert rebooted.devices((0, 2)) == (0, 1)
    assert rebooted.devices((1, 2)) == (1,)
    _, repaired = node_of(monkeypatch, tmp_path, gpus[0], FakeGpu("GPU-new"), gpus[2], boot="boot3")
    assert said(repaired) == ["", "", ""]
    assert repaired.devices((0, 1, 2)) == (0, 1, 2)


def test_a_reloaded_driver_is_asked_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake, driver = node_of(monkeypatch, tmp_path, FakeGpu("GPU-a"))
    fake.loaded = False
    with pytest.raises(UnavailableError):
        driver.read(())
    fake.loaded = True
    fake.xids = [(fake.present[0], 79)]
    assert said(driver) == ["Xid 79 (fell off the bus)"]


def test_memory_of_others_counts_also_where_the_driver_does_not_say_whose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = os.getpid()
    gpu = FakeGpu("GPU-a", used_bytes=50, processes=[(own, 30), (999_999_999, 5)])
    _, driver = node_of(monkeypatch, tmp_path, gpu)
    assert driver.read([os.getsid(0)])[0].foreign_bytes == 5
    assert driver.read([])[0].foreign_bytes == 35
    gpu.processes[1] = (999_999_999, UNKNOWN)
    assert driver.read([os.getsid(0)])[0].foreign_bytes == 20
    gpu.processes[0] = (own, UNKNOWN)
    assert driver.read([os.getsid(0)])[0].foreign_bytes == 0


@given(st.lists(st.sampled_from("abcdef"), unique=True), st.lists(st.sampled_from("abcdefgh"), unique=True))
def test_numbers_never_move(known: list[str], present: list[str]) -> None:
    slots = assigned(known, present)
    assert set(present) <= set(slots)
    assert len(set(slots)) == len(slots) >= len(known)
    assert all(slots[number] == uuid for number, uuid in enumerate(known) if uuid in present)
    assert assigned(slots, present) == slots


def test_simulated_gpus_break_and_mend_with_a_file(tmp_path: Path) -> None:
    path = tmp_path / "gpu-faults.json"
    driver = SimulatedGpus("n1", "GB200", 2, FaultFile(path))
    assert driver.inventory().memory_bytes == 192 * 10**9
    assert all(gpu.healthy for gpu in driver.read(()))
    path.write_text(json.dumps({"n1": {"1": {"xid": 79, "foreign_bytes": 7}}, "n2": {"0": {"lost": True}}}))
    assert driver.read(()) == (GpuReport(0), GpuReport(1, False, 7, "Xid 79 (fell off the bus)"))
    path.write_text("{")
    assert not driver.read(())[1].healthy
    path.unlink()
    assert driver.read(())[1].healthy
