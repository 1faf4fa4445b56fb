"""What an agent needs to know of an engine: how to start one rank, when it is ready, what its figures mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol

from denvweb.core.errors import InvalidError
from fleets.domain.ports import GANG, HTTP, SIDE_CHANNEL
from fleets.domain.protocol import RankSpec


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do, as dry runs and routers must respect it."""

    disaggregate: bool
    local_prefill_on_decode: bool  # decode serves a request that comes without KV
    hetero_tensor_parallel: bool  # prefill and decode may differ in it
    role_switch: bool  # prefill <-> decode without loading weights again
    followers_listen: bool = False  # whether ranks other than 0 answer `ready_path` on their own port


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """One process. `env` is added to the agent's own; an empty `ready_path` means ready when `ready_line` is in its log.

    With both empty the rank counts as ready while its process lives: its leader's endpoint speaks for the gang.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/health"
    metrics_path: str = "/metrics"
    ready_line: str = ""
    listens: Mapping[int, str] = field(default_factory=dict)  # ports that must be free on this node, and what each is for


class EngineAdapter(Protocol):
    """One engine behind the interface that agents use."""

    @property
    def name(self) -> str:
        """`vllm`, `sim`, ..."""

    @property
    def program(self) -> str:
        """The word of its command line that a node may have its own command for; empty: none."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    def command(self, spec: RankSpec, *, speed: float = 1.0, engine_id: str = "") -> LaunchCommand:
        """How to start this rank. `speed` is for the simulated engine; InvalidError when the recipe lacks something."""

    def map_metrics(self, text: str) -> dict[str, float]:
        """denv's gauges out of the engine's own metrics text; what it does not say is left out."""


_ADAPTERS = {
    "sim": "fleets.engines.simulated",
    "vllm": "fleets.engines.vllm",
    "sglang": "fleets.engines.sglang",
    "trtllm": "fleets.engines.trtllm",
    "deepinfer": "fleets.engines.deepinfer",
}

ENGINES = tuple(name for name in _ADAPTERS if name != "sim")


def adapter_for(engine: str, simulated: bool) -> EngineAdapter:
    """The adapter of an engine; on simulated nodes that of the simulated engine, whatever the recipe names."""
    module = _ADAPTERS.get("sim" if simulated else engine)
    if module is None:
        raise InvalidError(f"there is no engine called {engine!r}; known are {', '.join(ENGINES)}", code="engine-unknown")
    adapter: EngineAdapter = import_module(module).ADAPTER
    return adapter


def gpu_env(spec: RankSpec) -> dict[str, str]:
    """Shows the process its own GPUs and no others."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in spec.gpus)}


def listens(spec: RankSpec, side_channel: str = "") -> dict[int, str]:
    """The ports of a rank whose engine listens for HTTP at its leader, for KV at `side_channel`'s name, and for its other ranks."""
    ports = {spec.port + HTTP: "HTTP"} if spec.index == 0 else {}
    if side_channel:
        ports[spec.port + SIDE_CHANNEL] = side_channel
    if spec.index == 0 and spec.count > 1:
        ports[spec.port + GANG] = "ranks of its replica"
    return ports


def replica_gpus(spec: RankSpec) -> int:
    """GPUs of the whole replica: its ranks are of one size."""
    return len(spec.gpus) * spec.count


def weights_path(weights: str) -> tuple[str, str]:
    """What an engine takes for `hf://org/name@revision` or `file:///path@digest`: name or path, and the revision or nothing."""
    scheme, _, rest = weights.partition("://")
    name, _, pin = rest.rpartition("@") if "@" in rest else (rest, "", "")
    return (name, pin) if scheme == "hf" else (name, "")


def option_flags(options: Mapping[str, str], *, but: frozenset[str] = frozenset()) -> list[str]:
    """The recipe's own flags as command-line words: an empty or `true` one stands alone, one that is `false` is left out.

    Options in capitals are no flags: see `environment_options`.
    """
    words: list[str] = []
    for name, value in sorted(options.items()):
        if name not in but and not name.isupper() and value.lower() != "false":
            words += [f"--{name}"] if value.lower() in {"", "true"} else [f"--{name}", value]
    return words


def environment_options(options: Mapping[str, str]) -> dict[str, str]:
    """The recipe's options in capitals (`OMP_NUM_THREADS`), which become variables of the engine's environment."""
    return {name: value for name, value in options.items() if name.isupper()}


def refuse_kv_settings(options: Mapping[str, str], engine: str, cure: str) -> None:
    """InvalidError when a release asks an engine for offload of KV or for KV events that denv has no flag of it for."""
    wanted = {
        "kv-cache.offload": options.get("kv-offload-bytes", "0") != "0",
        "kv-cache.events": options.get("kv-events", "false") == "true",
    }
    for name in (name for name, is_wanted in wanted.items() if is_wanted):
        raise InvalidError(f"{name} has no flag of {engine}; leave it out, and {cure}", code="kv-setting-unsupported")


def with_program(argv: tuple[str, ...], program: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """The command line with this node's own command in place of the engine's program."""
    if not words or program not in argv:
        return argv
    at = argv.index(program)
    return (*argv[:at], *words, *argv[at + 1 :])
