"""Waiting in front of a few servers: enough to propose a number of replicas, which the simulator then checks."""

from __future__ import annotations

from math import log


def erlang_c(servers: int, offered: float) -> float:
    """Probability that one has to wait in an M/M/c queue; `offered` is arrival rate times service time. 1 from full load on.

    By the recursion of Erlang B, which does not overflow (Cooper, "Introduction to Queueing Theory", 1981).
    """
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1.0 - offered / servers * (1.0 - blocked))


def wait_quantile_s(servers: int, rate_per_s: float, service_s: float, *, q: float, gap_spread: float, service_spread: float) -> float:
    """The `q`-quantile of the wait in a G/G/c queue, infinite at or over full load.

    Allen-Cunneen: the wait of M/M/c times half the sum of the squared spreads, with an exponential tail.
    """
    offered = rate_per_s * service_s
    if offered >= servers:
        return float("inf")
    must_wait = erlang_c(servers, offered)
    if must_wait <= 1.0 - q:
        return 0.0
    mean_of_waiters_s = service_s / (servers - offered) * (gap_spread**2 + service_spread**2) / 2
    return mean_of_waiters_s * log(must_wait / (1.0 - q))


def servers_for(
    rate_per_s: float, service_s: float, *, wait_s: float, q: float, gap_spread: float, service_spread: float, most_use: float = 0.9
) -> int:
    """The fewest servers with a `q`-quantile of the wait of at most `wait_s` and a use of at most `most_use`."""
    offered = rate_per_s * service_s
    servers = max(1, int(offered / most_use))
    while offered > most_use * servers or (
        wait_quantile_s(servers, rate_per_s, service_s, q=q, gap_spread=gap_spread, service_spread=service_spread) > wait_s
    ):
        servers += 1
    return servers
