"""Which nodes one agent process stands for: the machine it runs on, or simulated ones."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

from denvweb.core.errors import InvalidError
from fleets.agent import processes
from fleets.agent.config import Config, node_suffix
from fleets.agent.gpus.base import GpuDriver, StatedGpus
from fleets.agent.gpus.memory import GpuMemory
from fleets.agent.gpus.nvml import Nvml
from fleets.agent.gpus.simulated import FAULTS_FILE, FaultFile, SimulatedGpus
from fleets.agent.gpus.smi import NvidiaSmi, gpu_kind
from fleets.agent.slurm_nodes import slurm_nodes
from fleets.domain.protocol import NodeFacts

AGENT_VERSION = "0.1.0"
_PORT_MAX = 65535


def plan_nodes(config: Config) -> tuple[tuple[NodeFacts, GpuDriver], ...]:
    """Facts and GPU driver of every node; port ranges are disjoint. InvalidError when something must be told by a flag."""
    if config.launcher == "slurm":
        nodes = _slurm(config)
    else:
        nodes = _simulated(config) if config.simulated else (_machine(config),)
    names = [facts.name for facts, _ in nodes]
    if len(set(names)) < len(names):
        raise InvalidError("two nodes have the same name; give each --simulated fleet its own")
    last = max(facts.port_base + facts.port_count - 1 for facts, _ in nodes)
    if last > _PORT_MAX:
        raise InvalidError(
            f"{len(nodes)} nodes need ports {config.port_base} to {last}, and {_PORT_MAX} is the last there is; "
            "lower --port-base or --port-count, or start a second agent on another machine"
        )
    return nodes


def _simulated(config: Config) -> tuple[tuple[NodeFacts, GpuDriver], ...]:
    found: list[tuple[NodeFacts, GpuDriver]] = []
    port = config.port_base
    faults = FaultFile(config.state_path / FAULTS_FILE)
    for fleet in config.simulated:
        count = config.node_port_count(fleet.gpus)
        for domain in range(1, fleet.domains + 1):
            for node in range(1, fleet.nodes + 1):
                suffix = node_suffix(domain, node)
                name = f"{fleet.fleet}-{suffix}"
                driver = SimulatedGpus(name, fleet.kind, fleet.gpus, faults)
                facts = NodeFacts(
                    name=name,
                    fleet=fleet.fleet,
                    domain=f"d{domain:02d}",
                    gpu_kind=fleet.kind,
                    gpus=fleet.gpus,
                    host=config.host or "127.0.0.1",
                    port_base=port,
                    port_count=count,
                    simulated=True,
                    fabric_spans_nodes=fleet.span,
                    agent_version=AGENT_VERSION,
                    gpu_memory_bytes=driver.inventory().memory_bytes,
                )
                if fleet.only in ("", suffix):
                    found.append((facts, driver))
                port += count  # also for those that other agents stand for: on one machine they share its ports
    return tuple(found)


def _slurm(config: Config) -> tuple[tuple[NodeFacts, GpuDriver], ...]:
    """All nodes of a partition. Whether their GPUs are well is Slurm's business, which drains nodes that are not."""
    found: list[tuple[NodeFacts, GpuDriver]] = []
    port = config.port_base
    for node in slurm_nodes(config.slurm_partition):
        kind = config.gpu_kind or gpu_kind(node.kind.upper())
        if not kind:
            raise InvalidError(f"the GPUs of Slurm's node {node.name} have no type; pass --gpu-kind (e.g. --gpu-kind H200)")
        name = f"{config.fleet}-{re.sub(r'[^a-z0-9-]', '-', node.name.lower())}"
        facts = NodeFacts(
            name=name,
            fleet=config.fleet,
            domain=config.domain or name,
            gpu_kind=kind,
            gpus=node.gpus,
            host=node.address or node.name,
            port_base=port,
            port_count=config.node_port_count(node.gpus),
            fabric_spans_nodes=config.span,
            agent_version=AGENT_VERSION,
            launch_name=node.name,
        )
        found.append((facts, StatedGpus(kind=kind, count=node.gpus)))
        port += facts.port_count
    return tuple(found)


def _machine(config: Config) -> tuple[NodeFacts, GpuDriver]:
    driver = _driver(config)
    inventory = driver.inventory()
    name = config.name or re.sub(r"[^a-z0-9-]", "-", socket.gethostname().split(".")[0].lower())
    facts = NodeFacts(
        name=name,
        fleet=config.fleet,
        domain=config.domain or inventory.fabric or name,
        gpu_kind=config.gpu_kind or inventory.kind,
        gpus=inventory.count,
        host=config.host or facing_address(config.control),
        port_base=config.port_base,
        port_count=config.node_port_count(inventory.count),
        fabric_spans_nodes=config.span or bool(inventory.fabric),
        agent_version=AGENT_VERSION,
        gpu_memory_bytes=inventory.memory_bytes,
        driver_version=inventory.driver_version,
        cuda_version=inventory.cuda_version,
    )
    return facts, driver


def _driver(config: Config) -> GpuDriver:
    if config.gpus and config.gpu_kind:
        return StatedGpus(kind=config.gpu_kind, count=config.gpus)
    found = Nvml.find(GpuMemory(config.state_path / "gpus.json", processes.boot_id())) or NvidiaSmi.find()
    if found is None:
        raise InvalidError(
            "neither NVML (`pip install '.[gpu]'` in denv's folder) nor nvidia-smi is there, so the GPUs of this node are unknown: "
            "pass --gpus and --gpu-kind (e.g. --gpus 4 --gpu-kind GB200), or --simulated for nodes without GPUs"
        )
    return found


def facing_address(control: str) -> str:
    """This machine's address on the way to the control plane; nothing is sent (connecting a UDP socket only picks a route)."""
    parts = urlsplit(control)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))
        except OSError as error:
            raise InvalidError(f"cannot find the way to {control} ({error}); pass --host with this node's address") from error
        address: str = probe.getsockname()[0]
        return address
