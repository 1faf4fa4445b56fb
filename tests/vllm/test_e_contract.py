"""vLLM keeps the contract that the simulated engine is tested by: the same assertions, at the sockets of real engines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleets.domain.types import Role
from tests.integration.engine_contract import CONTRACT, Peer, Trio
from tests.integration.test_engine_contract import METRIC_TYPES
from tests.vllm.test_a_serving import APART, WHOLE
from tests.vllm.world import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def trio(lab: Lab) -> Trio:
    """The engines of the two stages, asked past their routers."""
    lab.serving("tiny-whole", WHOLE)
    lab.serving("tiny", APART)
    whole = Peer(lab.engine("tiny-whole", Role.AGGREGATED).url, "tiny-whole")
    prefill, decode = (Peer(lab.engine("tiny", role).url, "tiny") for role in (Role.PREFILL, Role.DECODE))
    return Trio(whole, prefill, decode, context=4096, metric_types=METRIC_TYPES)


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
def test_vllm_keeps_it(trio: Trio, promise: Callable[[Trio], None]) -> None:
    promise(trio)
