"""Everything that a simulated engine is told; its flags are the fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import msgspec

from denvweb.core.errors import InvalidError
from fleets.domain.hardware import GPUS
from fleets.domain.types import Faults, ModelShape, Role

# DeepSeek-V4.1-Flash as its recipe has it: 4-bit experts, tables of its n-gram memory on the host, 8e9 parameters at work in prefill.
FLASH_SHAPE = ModelShape(
    layers=40,
    hidden=5120,
    kv_heads=1,
    total_params=552e9,
    prefill_active_params=8e9,
    decode_active_params=16e9,
    weight_bytes=302e9,
    kv_bytes_per_token=890,
    context_tokens=1_048_576,
    attended_tokens=65_536,
)


VLLM, SGLANG = "vllm-nixl", "sglang-bootstrap"


@dataclass(frozen=True, slots=True)
class Config:
    """One simulated engine. `gpus` are those of the whole replica; with `ranks` over 1 it waits for its followers."""

    port: int = 9000  # HTTP; port + 1 serves KV, port + 2 is where followers meet, if there are any
    host: str = "127.0.0.1"
    role: Role = Role.AGGREGATED
    model: str = "sim"
    replica: str = "replica"
    engine_id: str = ""  # empty: a new one for every start
    ranks: int = 1
    gpu_kind: str = "GB200"
    gpus: int = 4
    tensor_parallel: int = 4
    shape: ModelShape = FLASH_SHAPE
    speed: float = 1.0  # how much faster than real time
    block_tokens: int = 64
    kv_blocks: int = 0  # 0: what the GPUs' memory holds, at most 12,288 so that a laptop can hold many engines
    prefix_caching: bool = True
    max_sequences: int = 1024
    max_batched_tokens: int = 8192  # of one step
    protocol: str = VLLM  # of the handover, as a router sees it
    lease_s: float = 30.0
    kv_load_failure: str = "fail"  # or `recompute`
    same_domain: bool = True  # whether prefill and decode share a fabric
    gang_heartbeat_s: float = 5.0
    events_port: int = 0  # where KV events are published; 0: nowhere. `replay_port` is where they can be asked for again
    replay_port: int = 0
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        """Refuse what could not run, in the words of the flags."""
        problems = {
            "gpu_kind": self.gpu_kind not in GPUS,
            "speed": self.speed <= 0,
            "block_tokens": not 1 <= self.block_tokens <= 1024,
            "ranks": self.ranks < 1,
            "gpus": self.gpus < 1,
            "tensor_parallel": self.tensor_parallel < 1,
            "protocol": self.protocol not in {VLLM, SGLANG},
            "kv_load_failure": self.kv_load_failure not in {"fail", "recompute"},
        }
        for name in (name for name, wrong in problems.items() if wrong):
            raise InvalidError(f"--{name.replace('_', '-')}: {getattr(self, name)!r} cannot be", code="flag-invalid")


def usage() -> str:
    """The flags, one a line."""
    lines = (f"  --{item.name.replace('_', '-')} {item.type}" for item in fields(Config))
    return "denv engine sim: a simulated engine\n\n  --config JSON, then single fields over it:\n" + "\n".join(lines) + "\n"


def parse_flags(argv: Sequence[str]) -> Config:
    """`--config '{"port": 9000}' --role decode`: one JSON object, and single fields over it."""
    values: dict[str, object] = {}
    words = iter(argv)
    names = {f"--{item.name.replace('_', '-')}": item.name for item in fields(Config)}
    try:
        for flag in words:
            value = next(words, None)
            if value is None:
                raise InvalidError(f"{flag} lacks its value", code="flag-invalid")
            if flag == "--config":
                values |= msgspec.json.decode(value, type=dict[str, object])
            elif flag in names:
                values[names[flag]] = msgspec.json.decode(value) if value.startswith("{") else value
            else:
                raise InvalidError(f"{flag} is no flag of the simulated engine", code="flag-unknown")
        return msgspec.convert(values, type=Config, strict=False)
    except msgspec.MsgspecError as error:
        raise InvalidError(f"the flags do not fit: {error}", code="flag-invalid") from error
