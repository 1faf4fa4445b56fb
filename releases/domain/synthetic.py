"""When synthetic requests are to be sent beside users' own: while a new release is being judged against the old one, and no longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleets.domain.protocol import Synthetic
from metrics.domain.alarm_text import KV_USE
from metrics.domain.types import AlarmSpec
from metrics.domain.views import AlarmVerdict
from releases.domain.plan import FULL_BP, MoveKind
from releases.domain.rollout_types import Phase, RolloutState
from releases.domain.spec_types import RolloutPolicy

_JUDGED = frozenset({MoveKind.SHIFT, MoveKind.HOLD})


def synthetic_of(state: RolloutState) -> Synthetic | None:
    """What routers should send, its prompts left out; None when nothing, as before the canary, after its hold, and on the way back."""
    probe, move = state.policy.probe, state.move
    judging = state.phase in (Phase.ROLLING, Phase.HELD) and move is not None and move.kind in _JUDGED
    if probe is None or state.old is None or not judging or not 0 < state.weight_bp < FULL_BP:
        return None
    return Synthetic(probe.per_s, probe.tokens, releases=(state.new.release, state.old.release))


def without_prompts(policy: RolloutPolicy) -> RolloutPolicy:
    """The policy as a rollout remembers it: the prompts are the release's, and far too long to be written with every decision."""
    return policy if policy.probe is None else replace(policy, probe=replace(policy.probe, prompts=()))


def judged_alarms(alarms: Sequence[AlarmSpec], *, probed: bool) -> tuple[AlarmSpec, ...]:
    """The alarms, and where synthetic requests are sent each once more for those alone."""
    return (*alarms, *(spec.synthetic_twin for spec in alarms if probed))


def synthetic_text(verdicts: Sequence[AlarmVerdict]) -> str:
    """`120 of 132 requests on the new release are synthetic, and are judged apart`; empty where denv made none."""
    users = max((verdict.n for verdict in verdicts if not verdict.synthetic and verdict.metric != KV_USE), default=0)
    made = max((verdict.n for verdict in verdicts if verdict.synthetic), default=0)
    return f"{made:,} of {users + made:,} requests on the new release are synthetic, and are judged apart" if made else ""
