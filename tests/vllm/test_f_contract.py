"""vLLM keeps the contract that the simulated engine is tested by: the same assertions, at the sockets of real engines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleets.domain.types import Role
from tests.integration.engine_contract import CONTRACT
from tests.integration.engine_peers import Peer, Trio
from tests.integration.test_engine_contract import METRIC_TYPES
from tests.vllm.world import LEASE_S, TINY, WHOLE, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def trio_of(lab: Lab) -> Trio:
    """The engines of the two stages, asked past their routers."""
    lab.serving(WHOLE)
    lab.serving(TINY)
    whole = Peer(lab.engine(WHOLE, Role.AGGREGATED).url, WHOLE)
    prefill, decode = (Peer(lab.engine(TINY, role).url, TINY) for role in (Role.PREFILL, Role.DECODE))
    return Trio(whole, prefill, decode, context=4096, lease_s=LEASE_S, metric_types=METRIC_TYPES)


@pytest.fixture(scope="module")
def trio(lab: Lab) -> Trio:
    """The same for all."""
    return trio_of(lab)


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
def test_vllm_keeps_it(trio: Trio, promise: Callable[[Trio], None]) -> None:
    promise(trio)
