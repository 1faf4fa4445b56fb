"""When a replica that is one too many has nothing left to finish."""

from __future__ import annotations

from collections.abc import Mapping

from fleets.domain.types import Role

SETTLE_S = 10.0  # what an engine said before the routers left it says nothing; agents report every 4 s, routers every second
LEASE_S = 30.0  # how long a prompt's KV waits at a prefill replica to be fetched: vLLM's NIXL connector's default
SCALE_IN_DEADLINE_S = 1800.0  # the longest answer that is waited for; nothing is in a hurry to have its GPUs


def finished(role: Role, gauges: Mapping[str, float], *, waited_s: float) -> bool:
    """Whether its engine has nothing in hand, `waited_s` after it was told to take nothing new.

    `gauges` are the engine's own. A decode replica has to end its answers; a prefill replica must keep its KV until that is fetched,
    or until the leases on it are over. An engine that does not say is waited for.
    """
    if waited_s < SETTLE_S or "running" not in gauges:
        return False
    if gauges["running"] + gauges.get("waiting", 0.0) > 0:
        return False
    return role is not Role.PREFILL or gauges.get("kv_use") == 0.0 or waited_s >= SETTLE_S + LEASE_S
