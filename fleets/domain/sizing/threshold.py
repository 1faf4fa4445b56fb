"""Below how many uncached tokens it is cheaper for decode to prefill by itself."""

from __future__ import annotations

from dataclasses import replace

from fleets.domain.simulator.types import Limits, StageShape
from fleets.domain.sizing.types import Serving
from fleets.domain.timing import StepTimes, kv_transfer_s, memory_fit, prefill_s
from fleets.domain.types import Role

_ROUND_TO = 50  # tokens; the model knows no finer
_MOST = 65_536
HOP_S = 0.001  # two more legs through the router


def break_even_tokens(shape: StageShape, *, batch: float, context_tokens: float, queue_s: float, itl_limit_s: float | None) -> int:
    """The smallest uncached length that is worth the trip to a prefill replica.

    A local prefill makes each of `batch` running sequences wait for it: that many sequence-seconds. A remote one makes one sequence
    wait longer: for the queue, the prefill on smaller replicas, the KV and the hop. Where the first is dearer, prefill is remote. A local
    prefill that alone would break the ITL limit is too long in any case.
    """
    pools = {pool.role: pool for pool in shape.pools}
    decode, prefill = pools[Role.DECODE], pools[Role.PREFILL]
    steps = StepTimes(shape.model, shape.gpu, decode.gpus, shape.calibration)
    step_s = steps.decode_s(max(1, round(batch)), batch * context_tokens)

    def worth_it(tokens: int) -> bool:
        stall_s = steps.prefill_part_s(tokens, 0)
        if itl_limit_s is not None and step_s + stall_s > itl_limit_s:
            return True
        there_s = prefill_s(shape.model, shape.gpu, prefill.gpus, tokens, 0) * shape.calibration.scale
        moved_s = kv_transfer_s(tokens * shape.model.kv_bytes_per_token, shape.gpu, shape.same_domain)
        longer_s = queue_s + there_s + moved_s + HOP_S + step_s - stall_s
        return batch * stall_s > longer_s

    low, high = 0, _MOST
    if not worth_it(high):
        return _MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if worth_it(middle) else (middle, high)
    return max(_ROUND_TO, round(high / _ROUND_TO) * _ROUND_TO)


def bearable(serving: Serving, limits: Limits) -> Serving:
    """The same with local prefills no longer than decode can bear: half of the ITL limit, on the smallest replica that holds the model.

    A threshold that suits a mixture of experts makes each local prefill of a dense model a gap over the limit, and then only shapes
    with so many decode replicas that such gaps are rare would keep it.
    """
    if limits.itl_s is None or Role.DECODE not in serving.roles:
        return serving
    gpus = serving.roles[Role.DECODE].min_gpus
    while gpus < serving.domain and not memory_fit(serving.model, serving.gpu, gpus, role=Role.DECODE).fits:
        gpus *= 2
    steps = StepTimes(serving.model, serving.gpu, gpus, serving.calibration)
    tokens = int(limits.itl_s / 2 / steps.token_s) // _ROUND_TO * _ROUND_TO
    below = min(serving.conditional.local_prefill_below, max(_ROUND_TO, tokens))
    return replace(serving, conditional=replace(serving.conditional, local_prefill_below=below))
