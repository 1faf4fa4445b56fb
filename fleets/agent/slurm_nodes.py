"""The nodes of a Slurm partition, as one agent stands for them: GPUs by their gres, addresses by their configuration."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from denvweb.core.errors import InvalidError, UnavailableError

_TIMEOUT_S = 20.0
_FIELD = re.compile(r"(\w+)=(\S*)")
_GRES = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?:(\d+)")


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node with GPUs."""

    name: str
    address: str
    gpus: int
    kind: str  # the gres type; empty: none is configured


def slurm_nodes(partition: str) -> list[SlurmNode]:
    """The partition's nodes that have GPUs, by name; InvalidError when there is none, UnavailableError when Slurm does not answer."""
    listed = parse_nodes(_scontrol("show", "node", "-o"))
    mine = [node for node, partitions in listed if node.gpus and (not partition or partition in partitions.split(","))]
    nodes = sorted(mine, key=lambda node: node.name)
    if not nodes:
        where = f"partition {partition}" if partition else "this Slurm"
        raise InvalidError(f"{where} has no node with GPUs (gres gpu); `scontrol show node` lists them")
    return nodes


def parse_nodes(text: str) -> list[tuple[SlurmNode, str]]:
    """Nodes and their partitions, of `scontrol show node -o`."""
    nodes = []
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if "NodeName" not in fields:
            continue
        gres = _GRES.search(fields.get("Gres", ""))
        node = SlurmNode(fields["NodeName"], fields.get("NodeAddr", ""), int(gres[2]) if gres else 0, (gres[1] or "") if gres else "")
        nodes.append((node, fields.get("Partitions", "")))
    return nodes


def _scontrol(*words: str) -> str:
    argv: Sequence[str] = ("scontrol", *words)
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
    except FileNotFoundError:
        raise InvalidError("scontrol is not on the path: --launcher slurm wants Slurm's commands on this machine") from None
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"Slurm does not answer: {error.stderr.strip()[:300]}") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"Slurm does not answer within {_TIMEOUT_S:.0f} s") from error
