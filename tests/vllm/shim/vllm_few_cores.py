"""A plugin that vLLM loads in each of its processes: NIXL on a machine with few cores and no GPU.

NIXL's Python side asks for a progress thread without pauses, so that an idle engine burns a core; here it sleeps 1 ms between looks.
And on CPU its worker pins itself to the last core of each NUMA node, where prefill and decode would then compute side by side.
"""

from __future__ import annotations

import os
from typing import Any

_PAUSE_US = int(os.environ.get("DENV_TEST_NIXL_PAUSE_US", "1000"))


def register() -> None:
    """Called by vLLM; does nothing where NIXL is not installed."""
    os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.discover_numa_topology = classmethod(lambda cls: [])
    try:
        from nixl import _api
    except ImportError:
        return
    if not isinstance(_api.nixlBind, _Bind):
        _api.nixlBind = _Bind(_api.nixlBind)


class _Bind:
    """NIXL's native module with another default for its agents."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def nixlAgent(self, name: str, config: Any) -> Any:  # noqa: N802 (NIXL's own name)
        config.pthrDelay = _PAUSE_US
        return self._native.nixlAgent(name, config)
