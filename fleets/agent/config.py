"""What an agent is told when it starts. The flags are made from the fields of `Config`."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from denvweb import env
from denvweb.core.errors import InvalidError
from denvweb.core.flags import FlagParser
from fleets.domain.ports import PORTS_A_RANK
from fleets.domain.stall import SILENT_S
from fleets.engines.base import ENGINES

LAUNCHERS = ("process", "slurm")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SIMULATED_PORT_FACTOR = 3  # a draining, a running and a starting rank may stand on one GPU at once


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """A fleet of nodes that exist only as this agent's word; their engines are simulated."""

    fleet: str
    kind: str
    domains: int
    nodes: int  # in each domain
    gpus: int  # of each node
    span: bool = False  # the fabric joins the nodes of a domain, as an NVL72's does
    only: str = ""  # `d01-n02`: that one of them; empty: all


def parse_simulated(text: str) -> SimulatedFleet:
    """Read `fleet=gb200-use1,kind=GB200,domains=3,nodes=18,gpus=4,span`; InvalidError says which part is wrong."""
    given: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        given[key] = value
    known = {item.name for item in fields(SimulatedFleet)}
    if unknown := set(given) - known:
        raise InvalidError(f"--simulated {text}: unknown part {', '.join(sorted(unknown))}; the parts are {', '.join(sorted(known))}")
    if not _NAME.fullmatch(given.get("fleet", "")) or not given.get("kind"):
        raise InvalidError(f"--simulated {text}: it needs fleet= (lower-case letters, digits, dashes) and kind= (such as GB200)")
    counts: dict[str, int] = {}
    for key, default in (("domains", 1), ("nodes", 1), ("gpus", 8)):
        value = given.get(key, str(default))
        if not value.isdigit() or int(value) < 1:
            raise InvalidError(f"--simulated {text}: {key}={value} is no whole number above 0")
        counts[key] = int(value)
    only = given.get("only", "")
    if only and not _is_one_of(only, counts["domains"], counts["nodes"]):
        raise InvalidError(
            f"--simulated {text}: only={only} is none of its nodes; they are d01-n01 to {node_suffix(counts['domains'], counts['nodes'])}"
        )
    return SimulatedFleet(fleet=given["fleet"], kind=given["kind"], span="span" in given, only=only, **counts)


def node_suffix(domain: int, node: int) -> str:
    """How a simulated node's name ends."""
    return f"d{domain:02d}-n{node:02d}"


def _is_one_of(suffix: str, domains: int, nodes: int) -> bool:
    return any(suffix == node_suffix(domain, node) for domain in range(1, domains + 1) for node in range(1, nodes + 1))


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """How an engine's program is called on this node: its words stand in place of the program's name."""

    engine: str
    words: tuple[str, ...]


def parse_engine_command(text: str) -> EngineCommand:
    """Read `vllm=/opt/vllm/bin/vllm`; InvalidError says what is wrong."""
    engine, _, command = text.partition("=")
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise InvalidError(f"--engine-command {text}: {error}") from error
    if engine not in ENGINES or not words:
        raise InvalidError(f"--engine-command {text}: it is ENGINE=COMMAND, and the engines are {', '.join(ENGINES)}")
    return EngineCommand(engine, words)


def _flag(help_text: str, default: Any = MISSING, **more: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **more})


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of one agent process. Immutable: a change is a restart, which the engines survive."""

    control: str = _flag("URL of the control plane", "http://127.0.0.1:8080", metavar="URL")
    token: str = _flag("join token; needed once, until the node has its own credential", "")
    token_file: str = _flag("file that holds the join token", "", metavar="FILE")
    state_dir: str = _flag("folder for credentials, snapshots and engine logs (default: $DENV_HOME/agent)", "", metavar="DIR")
    fleet: str = _flag("fleet that this node belongs to", "default")
    domain: str = _flag("name of its scale-up domain in the fleet (default: the node's own name)", "")
    name: str = _flag("name of this node (default: the host name)", "")
    gpus: int = _flag("number of GPUs; found by nvidia-smi when left out", 0, metavar="N")
    gpu_kind: str = _flag("kind of the GPUs, such as GB200; found by nvidia-smi when left out", "")
    span: bool = _flag("the fabric joins the nodes of a domain (NVL72)", False)
    host: str = _flag("address where routers reach this node's engines (default: the one that faces the control plane)", "")
    port_base: int = _flag("first port for engines", 20000, metavar="PORT")
    port_count: int = _flag("ports of each node (default: enough for its GPUs)", 0, metavar="N")
    simulated: tuple[SimulatedFleet, ...] = _flag(
        "stand for simulated nodes, e.g. fleet=gb200-use1,kind=GB200,domains=3,nodes=18,gpus=4,span; with only=d01-n02 for one of them; "
        "may be repeated",
        (),
        parse=parse_simulated,
        metavar="FLEET",
    )
    engine_command: tuple[EngineCommand, ...] = _flag(
        "how an engine is called here when not by its plain name, e.g. vllm=/opt/vllm/bin/vllm; may be repeated",
        (),
        parse=parse_engine_command,
        metavar="ENGINE=COMMAND",
    )
    weights_dir: str = _flag("where weights of hf:// are kept (default: the hub's own cache)", "", metavar="DIR")
    launcher: str = _flag("process (default), or slurm: one agent stands for the nodes of a partition", "process")
    slurm_partition: str = _flag("partition of --launcher slurm (default: all nodes with GPUs)", "", metavar="NAME")
    slurm_option: str = _flag("further words for sbatch, e.g. --slurm-option='--account=ml --qos=high'", "", metavar="WORDS")
    speed: float = _flag("how many times faster than real hardware simulated engines run", 1.0, metavar="FACTOR")
    hung_after_s: float = _flag(
        "an engine that was ready and answers nothing for so long is replaced; 0: never", SILENT_S, metavar="SECONDS"
    )
    stop_engines_on_exit: bool = _flag("stop the engines when the agent is stopped (default: they go on and are adopted later)", False)
    log_level: str = _flag("DEBUG, INFO, WARNING or ERROR", "INFO")

    @property
    def state_path(self) -> Path:
        """The state folder, absolute."""
        return (Path(self.state_dir) if self.state_dir else env.home() / "agent").absolute()

    @property
    def programs(self) -> dict[str, tuple[str, ...]]:
        """Commands of this node by engine."""
        return {command.engine: command.words for command in self.engine_command}

    def read_token(self) -> str:
        """The join token from --token or --token-file; empty when neither is given or the file is not there (yet)."""
        if self.token:
            return self.token.strip()
        path = Path(self.token_file)
        return path.read_text(encoding="utf-8").strip() if self.token_file and path.is_file() else ""

    def node_port_count(self, gpus: int) -> int:
        """Ports that one node of `gpus` GPUs gets."""
        return self.port_count or PORTS_A_RANK * gpus * (_SIMULATED_PORT_FACTOR if self.simulated else 8)


def parser() -> argparse.ArgumentParser:
    """The argument parser, one flag for each field of `Config`."""
    made = FlagParser(prog="denv agent", description="Make this node run what the control plane says.")
    hints = get_type_hints(Config)
    for item in fields(Config):
        flag = "--" + item.name.replace("_", "-")
        help_text = item.metadata["help"]
        if hints[item.name] is bool:
            made.add_argument(flag, action="store_true", help=help_text)
        elif parse := item.metadata.get("parse"):
            made.add_argument(flag, action="append", type=_argument(parse), help=help_text, metavar=item.metadata["metavar"])
        else:
            made.add_argument(flag, type=hints[item.name], default=item.default, help=help_text, metavar=item.metadata.get("metavar"))
    return made


def _argument(parse: Any) -> Any:
    def convert(text: str) -> object:
        try:
            return parse(text)
        except InvalidError as error:
            raise argparse.ArgumentTypeError(error.detail) from error

    return convert


def parse_config(argv: Sequence[str]) -> Config:
    """Config of a command line; exits with 2 and a sentence when a flag is wrong, as argparse does."""
    values = vars(parser().parse_args(list(argv)))
    for name in ("simulated", "engine_command"):
        values[name] = tuple(values[name] or ())
    config = Config(**values)
    if not config.control.startswith(("http://", "https://")):
        raise InvalidError(f"--control {config.control}: it must start with http:// or https://")
    if config.launcher not in LAUNCHERS:
        raise InvalidError(f"--launcher {config.launcher}: it is one of {', '.join(LAUNCHERS)}")
    if config.speed <= 0:
        raise InvalidError(f"--speed {config.speed}: it must be above 0")
    return config
