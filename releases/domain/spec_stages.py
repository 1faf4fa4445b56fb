"""The `stages` section."""

from __future__ import annotations

from itertools import pairwise

from releases.domain.source import Node
from releases.domain.spec_alarms import Alarms, for_stage
from releases.domain.spec_prompts import read_prompts, read_rate
from releases.domain.spec_reader import NAME_RULE, Section, Wrong, choice, count_range, duration, is_name, name, ratio, several, whole
from releases.domain.spec_topology import read_topology
from releases.domain.spec_types import Approval, Mode, PoolTopology, ProbePolicy, RolloutPolicy, Scaling, StageSpec, Topology

MOST_UNITS = 1024
PROBE_TOKENS = 32  # of a synthetic request's answer, unless the file says otherwise


# Stands in for a release's topology that has mistakes of its own, so that a stage's changes to it are checked all the same.
_ANY_POOL = PoolTopology(gpus=1, replicas=1, min_replicas=1, max_replicas=1)
_ANY_TOPOLOGY = Topology(Mode.DISAGGREGATED, prefill=_ANY_POOL, decode=_ANY_POOL)


def read_stages(section: Section, base: Topology | None, alarms: Alarms) -> tuple[StageSpec, ...]:
    """The stages in the order written. `base` is the release's topology, None when that has mistakes of its own; `alarms` the model's."""
    stages: list[StageSpec] = []
    if section.is_mapping and not section.entries():
        section.fail(section.at, "", "no stage is here; write at least one, such as `prod: { fleets: [gb200-use1] }`")
    for entry in section.entries():
        if not is_name(entry.key):
            section.fail(entry.place, entry.key, f"not a stage name; {NAME_RULE}")
        below = section.section(entry.key)
        if below is not None:
            stage = _stage(below, entry.key, base or _ANY_TOPOLOGY, alarms)
            if stage is not None:
                stages.append(stage)
    return tuple(stages)


def _stage(section: Section, stage: str, base: Topology, defaults: Alarms) -> StageSpec | None:
    fleets = section.take("fleets", several(name("a fleet name"), "[gb200-use1]"), (), missing="this is missing; name at least one fleet")
    if len(set(fleets)) < len(fleets):
        section.fail(section.at, "fleets", "a fleet is named twice; remove one")
    least, most = section.take("replicas", count_range("a number of serving units", MOST_UNITS), (1, 1))
    changes = section.section("topology")
    topology = read_topology(changes, base) if changes else base
    alarms, specs = for_stage(section.section("alarms"), defaults, (topology or base).mode)
    rollout = _rollout(section.section("rollout"))
    scaling = section.take("scaling", choice(Scaling), Scaling.AUTO)
    section.finish()
    if topology is None:
        return None
    return StageSpec(stage, fleets, least, topology, alarms, specs, rollout, most if most > least else None, scaling)


def _rollout(section: Section | None) -> RolloutPolicy:
    default = RolloutPolicy()
    if section is None:
        return default
    policy = RolloutPolicy(
        canary_ratio=section.take("canary", ratio, default.canary_ratio),
        steps=section.take("steps", _steps, default.steps),
        hold_s=section.take("hold", duration, default.hold_s),
        bake_s=section.take("bake", duration, default.bake_s),
        approve=section.take("approve", choice(Approval), default.approve),
        keep_warm_s=section.take("keep-warm", duration, default.keep_warm_s),
        deadline_s=section.take("deadline", lambda node: duration(node, least_s=10.0), default.deadline_s),
        min_requests=section.take("min-requests", whole("a number of requests", 1, 100_000_000), default.min_requests),
        max_wait_s=section.take("max-wait", duration, default.max_wait_s),
        probe=_probe(section.section("probe")),
    )
    if policy.canary_ratio > policy.steps[0]:
        section.fail(
            section.at, "canary", f"{policy.canary_ratio:.0%} is over the first step, {policy.steps[0]:.0%}; write a smaller canary"
        )
    section.finish()
    return policy


def _probe(section: Section | None) -> ProbePolicy | None:
    if section is None:
        return None
    per_s = section.take("rate", read_rate, 1.0)
    prompts = section.take("prompts", read_prompts, (), missing="this is missing; name a file with one prompt a line, or write a list")
    tokens = section.take("tokens", whole("a number of tokens", 1, 4096), PROBE_TOKENS)
    section.finish()
    return ProbePolicy(per_s, prompts, tokens) if prompts else None


def _steps(node: Node) -> tuple[float, ...] | Wrong:
    """Shares that rise to all of the traffic."""
    steps = several(ratio, "[50%, 100%]")(node)
    if isinstance(steps, Wrong):
        return steps
    if any(later <= earlier for earlier, later in pairwise(steps)):
        return Wrong("each step must be over the one before it, such as [25%, 50%, 100%]")
    return steps if steps[-1] == 1 else Wrong("the last step must be 100%")
