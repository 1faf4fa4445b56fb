"""What each GPU kind can do: dense peaks, memory, and the links between GPUs.

Figures: vendor data sheets as collected by InferenceX `gpu-specs.ts` and aiconfigurator 0.12.0; dense, without sparsity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_TERA = 1e12
_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class GpuKind:
    """One GPU. Links are per GPU and in one direction; `domain_gpus` is the usual size of its scale-up domain."""

    name: str
    vendor: str
    bf16_flops: float  # per second
    fp8_flops: float
    fp4_flops: float | None  # None: no such units, 4-bit weights are computed in 8 bits
    memory_bytes: float
    memory_bytes_per_s: float
    domain_gpus: int
    domain_bytes_per_s: float  # NVLink or Infinity Fabric
    network_bytes_per_s: float  # scale-out
    fabric_spans_nodes: bool


class GpuTable(Mapping[str, GpuKind]):
    """GPU kinds by name; case, and a `-SXM` or `_SXM` behind the name, do not matter."""

    def __init__(self, kinds: tuple[GpuKind, ...], aliases: Mapping[str, str]) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self._names = {_folded(kind.name): kind.name for kind in kinds} | {_folded(alias): name for alias, name in aliases.items()}

    def __getitem__(self, name: str) -> GpuKind:
        return self._kinds[self._names[_folded(name)]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def _folded(name: str) -> str:
    plain = name.upper().replace("_", "-").replace(" ", "-")
    return plain.removeprefix("NVIDIA-").removeprefix("AMD-").removesuffix("-SXM").removesuffix("-SXM5")


def _kind(
    name: str,
    tera_flops: tuple[float, float, float | None],
    memory_gb: float,
    memory_tb_per_s: float,
    domain: tuple[int, float],
    network_gbit_per_s: float,
    vendor: str = "nvidia",
) -> GpuKind:
    bf16, fp8, fp4 = tera_flops
    return GpuKind(
        name=name,
        vendor=vendor,
        bf16_flops=bf16 * _TERA,
        fp8_flops=fp8 * _TERA,
        fp4_flops=None if fp4 is None else fp4 * _TERA,
        memory_bytes=memory_gb * _GIGA,
        memory_bytes_per_s=memory_tb_per_s * _TERA,
        domain_gpus=domain[0],
        domain_bytes_per_s=domain[1] * _GIGA,
        network_bytes_per_s=network_gbit_per_s * _GIGA / 8,
        fabric_spans_nodes=domain[0] > 8,
    )


GPUS: Mapping[str, GpuKind] = GpuTable(
    (
        _kind("A100", (312, 312, None), 80, 2.04, (8, 300), 200),  # no 8-bit floating point: computed in BF16
        _kind("H100", (989, 1979, None), 80, 3.35, (8, 450), 400),
        _kind("H200", (989, 1979, None), 141, 4.8, (8, 450), 400),
        _kind("H800", (989, 1979, None), 80, 3.35, (8, 200), 400),
        _kind("B200", (2250, 4500, 9000), 180, 8.0, (8, 900), 400),
        _kind("B300", (2250, 4500, 13500), 268, 8.0, (8, 900), 800),
        _kind("GB200", (2500, 5000, 10000), 192, 8.0, (72, 900), 800),
        _kind("GB300", (2500, 5000, 15000), 288, 8.0, (72, 900), 800),
        _kind("MI300X", (1307, 2615, None), 192, 5.3, (8, 448), 400, vendor="amd"),
        _kind("MI355X", (2516, 5033, 10066), 288, 8.0, (8, 576), 400, vendor="amd"),
    ),
    aliases={
        "A100-80GB": "A100",
        "H100-80GB": "H100",
        "H100-80GB-HBM3": "H100",
        "H200-141GB": "H200",
        "GB200-NVL72": "GB200",
        "GB300-NVL72": "GB300",
        "MI300": "MI300X",
    },
)
