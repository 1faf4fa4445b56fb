"""What is wrong, or worth knowing, about a release before it runs: values with a stable code, a severity and a sentence.

Pure: fleets and the recipe are handed in. What depends on the GPUs that happen to be free is the plan's business; here every fleet is
taken as if it were empty, so a finding of this module stays true until the file or the fleet changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from denvweb.core.units import format_bytes
from denvweb.core.words import did_you_mean
from fleets.domain.hardware import GPUS, GpuKind
from fleets.domain.placement import Refusal, place_units
from fleets.domain.rank_fit import context_tokens
from fleets.domain.sizing.advise import LARGE_MODEL_PARAMS
from fleets.domain.timing import MEMORY_USE_RATIO, RESERVED_BYTES, MemoryFit, memory_fit
from fleets.domain.types import Faults, FleetView, PlacementRule, PoolSpec, Role, UnitSpec
from releases.domain.engine_findings import engine_refusals
from releases.domain.recipes import Catalog, Parallelism, Recipe, RoleRules, recipe_unknown
from releases.domain.spec_types import Mode, ReleaseFile, ReleaseSpec, StageSpec
from releases.domain.units import ROUTED_PROTOCOLS, SIMULATED_PROTOCOLS, unit_spec
from releases.domain.views import FindingView

_MOVING_REVISIONS = frozenset({"main", "master", "latest", "head"})
_NO_FAULTS = Faults()


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"  # the release cannot be created
    WARN = "warn"  # it can, and a person should know
    ADVICE = "advice"  # something else would probably serve better
    OK = "ok"  # checked, and fine


@dataclass(frozen=True, slots=True)
class _Subject:
    """What the checks of one stage look at."""

    release: ReleaseSpec
    stage: StageSpec
    recipe: Recipe
    unit: UnitSpec
    fleets: tuple[FleetView, ...]  # those of the stage that are known, in its order
    elsewhere: tuple[FleetView, ...]

    def finding(self, severity: Severity, code: str, sentence: str, arithmetic: str = "", fits: str = "") -> FindingView:
        """A finding about this stage."""
        return FindingView(severity.value, code, stage_subject(self.stage), sentence, arithmetic, fits)

    def rules(self, role: Role) -> RoleRules:
        """The recipe's rules for a role."""
        return self.recipe.roles.get(role, RoleRules())


def stage_subject(stage: StageSpec) -> str:
    """`stage prod-us`."""
    return f"stage {stage.name}"


def release_findings(file: ReleaseFile, catalog: Catalog) -> tuple[FindingView, ...]:
    """What holds for the release wherever it runs."""
    release = file.release
    recipe = catalog.get(release.recipe)
    found = list(_weights_pinned(release))
    if recipe is None:
        found.append(_about_release("recipe-unknown", recipe_unknown(release.recipe, catalog)))
        return tuple(found)
    return (*found, *_options_known(release, recipe), *_kv_dtype_known(release, recipe), *_roles_used(file))


def stage_findings(file: ReleaseFile, stage: StageSpec, recipe: Recipe, fleets: Sequence[FleetView]) -> tuple[FindingView, ...]:
    """What holds for one stage; `fleets` are all that there are."""
    known = {fleet.name: fleet for fleet in fleets}
    mine = tuple(known[name] for name in stage.fleets if name in known)
    subject = _Subject(
        release=file.release,
        stage=stage,
        recipe=recipe,
        unit=unit_spec(file.release, stage, recipe, f"{file.release.model}@0", simulated=all_simulated(mine)),
        fleets=mine,
        elsewhere=tuple(fleet for fleet in fleets if fleet.name not in stage.fleets and _runs_on(recipe, fleet)),
    )
    found = [*_fleets_known(subject, known)]
    for check in _CHECKS:
        found.extend(check(subject))
    return tuple(found)


def all_simulated(fleets: Sequence[FleetView]) -> bool:
    """Whether nothing of it is real; no fleet at all counts as real."""
    return bool(fleets) and all(fleet.simulated for fleet in fleets)


def has_errors(findings: Iterable[FindingView]) -> bool:
    """Whether any of them forbids the release."""
    return any(finding.severity == Severity.ERROR for finding in findings)


def refusal_findings(stage: StageSpec, refusal: Refusal) -> tuple[FindingView, ...]:
    """A refusal of the placement, one finding a fleet."""
    each = (refusal, *refusal.also)
    return tuple(FindingView("error", one.code, stage_subject(stage), one.sentence, one.arithmetic, one.fits) for one in each)


# ---- of the release ----


def secret_findings(release: ReleaseSpec, secrets: Mapping[str, str]) -> tuple[FindingView, ...]:
    """Secrets that are not stored, or not for this model; `secrets` are models (or `*`) by name."""
    found = []
    for variable, name in sorted(release.secrets.items()):
        if secrets.get(name) in ("*", release.model):
            continue
        owner = f" for {release.model}" if name in secrets else ""
        sentence = f"secrets.{variable} names {name}, and no such secret is stored{owner}; `denv secret set {name}` stores it"
        found.append(_about_release("secret-unknown", sentence))
    return tuple(found)


def _about_release(code: str, sentence: str, severity: Severity = Severity.ERROR) -> FindingView:
    return FindingView(severity.value, code, "release", sentence)


def _weights_pinned(release: ReleaseSpec) -> Iterable[FindingView]:
    _, at, revision = release.weights.partition("@")
    what = "digest" if release.weights.startswith("file:") else "revision"
    if not at:
        yield _about_release(
            "weights-not-pinned", f"weights {release.weights} name no {what}; add @{what}, so that the release stays what it is"
        )
    elif revision.lower() in _MOVING_REVISIONS:
        sentence = f"weights {release.weights} follow {revision}, which moves; name a {what}, so that the release stays what it is"
        yield _about_release("weights-not-pinned", sentence)


def _options_known(release: ReleaseSpec, recipe: Recipe) -> Iterable[FindingView]:
    for role, options in release.engine_options.items():
        known = recipe.roles.get(role, RoleRules()).options
        for key in options:
            if key not in known:
                hint = did_you_mean(key, known) or f"; it has {', '.join(sorted(known)) or 'none'}"
                yield _about_release(
                    "engine-option-unknown", f"engine.{role.value}.{key} is no option of {recipe.name} for {role.value}{hint}"
                )


def _kv_dtype_known(release: ReleaseSpec, recipe: Recipe) -> Iterable[FindingView]:
    dtype, known = release.kv_cache.dtype, recipe.kv_cache.bytes_per_token
    if dtype is not None and dtype not in known:
        yield _about_release(
            "kv-dtype-unsupported", f"kv-cache.dtype {dtype} is none that {recipe.name} keeps KV in; one of {', '.join(known)}"
        )


def _roles_used(file: ReleaseFile) -> Iterable[FindingView]:
    used = {role for stage in file.stages for role, _ in stage.topology.pools}
    for section, roles in (("engine", file.release.engine_options), ("simulated-faults", file.release.faults)):
        for role in roles:
            if role not in used:
                yield _about_release("pool-unknown", f"{section}.{role.value}: no stage has such a pool; remove it, or change the topology")


# ---- of a stage ----


def _fleets_known(subject: _Subject, known: Mapping[str, FleetView]) -> Iterable[FindingView]:
    for name in subject.stage.fleets:
        if name not in known:
            hint = did_you_mean(name, known) or (f"; there are {', '.join(sorted(known))}" if known else "; there is none yet")
            yield subject.finding(Severity.ERROR, "fleet-unknown", f"fleet {name} is not known{hint}")


def _placed(subject: _Subject) -> Iterable[FindingView]:
    """Whether all units fit the stage's fleets at all."""
    if not subject.fleets:
        return ()
    placed = place_units(subject.unit, subject.stage.replicas, subject.fleets, elsewhere=subject.elsewhere, emptied=True)
    return refusal_findings(subject.stage, placed) if isinstance(placed, Refusal) else ()


def _runs_on(recipe: Recipe, fleet: FleetView) -> bool:
    return fleet.gpu_kind.upper() in {kind.upper() for kind in recipe.gpu_kinds}


def _gpu_kinds(subject: _Subject) -> Iterable[FindingView]:
    recipe = subject.recipe
    for fleet in subject.fleets:
        if _runs_on(recipe, fleet):
            continue
        sentence = f"fleet {fleet.name} has {fleet.gpu_kind}; recipe {recipe.name} runs on {', '.join(recipe.gpu_kinds)}"
        if fleet.simulated:
            yield subject.finding(Severity.WARN, "gpu-kind-mismatch", f"{sentence}. The fleet is simulated, so it runs all the same")
        else:
            yield subject.finding(Severity.ERROR, "gpu-kind-mismatch", sentence)


def _weights_fit(subject: _Subject) -> Iterable[FindingView]:
    for fleet in subject.fleets:
        kind = GPUS.get(fleet.gpu_kind)
        if kind is None:  # a kind that nobody described: its memory is unknown
            continue
        for pool in subject.unit.pools:
            fit = memory_fit(pool.engine.shape, kind, pool.gpus, role=pool.role, wanted_kv_tokens=context_tokens(pool.engine))
            if not fit.fits:
                yield _too_heavy(subject, fleet, kind, pool, fit)


def _too_heavy(subject: _Subject, fleet: FleetView, kind: GpuKind, pool: PoolSpec, fit: MemoryFit) -> FindingView:
    per_gpu, usable = format_bytes(fit.weights_bytes), format_bytes(fit.usable_bytes)
    where = f"{pool.role.value} on {_gpus(pool.gpus)} of {fleet.name}"
    kv = format_bytes(fit.wanted_kv_tokens * pool.engine.shape.kv_bytes_per_token)
    arithmetic = (
        f"{format_bytes(fit.weights_bytes * pool.gpus)} of weights over {_gpus(pool.gpus)} = {per_gpu}; "
        f"{format_bytes(kind.memory_bytes)} x {MEMORY_USE_RATIO:g} - {format_bytes(RESERVED_BYTES)} = {usable}; "
        f"KV of one sequence of {fit.wanted_kv_tokens:,} tokens takes {kv}"
    )
    sentence = f"{where}: {per_gpu} of weights per GPU and KV for one sequence, {usable} usable"
    return subject.finding(Severity.ERROR, "weights-do-not-fit", sentence, arithmetic, f"{_gpus(fit.gpus_needed)} a replica")


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _enough_gpus(subject: _Subject) -> Iterable[FindingView]:
    for pool in subject.unit.pools:
        least = subject.rules(pool.role).min_gpus
        if pool.gpus < least:
            sentence = f"{pool.role.value} has {_gpus(pool.gpus)} a replica; recipe {subject.recipe.name} needs at least {least}"
            yield subject.finding(Severity.ERROR, "gpus-below-recipe", sentence)


def _disaggregates(subject: _Subject) -> Iterable[FindingView]:
    recipe = subject.recipe
    missing = [pool.role for pool in subject.unit.pools if pool.role not in recipe.roles]
    if missing and subject.stage.topology.mode is Mode.DISAGGREGATED:
        sentence = f"{recipe.engine} under recipe {recipe.name} cannot disaggregate; write `topology: {{ mode: aggregated, gpus: N }}`"
        yield subject.finding(Severity.ERROR, "engine-cannot-disaggregate", sentence)
    elif missing:
        sentence = f"recipe {recipe.name} has no aggregated form; write `prefill` and `decode` pools"
        yield subject.finding(Severity.ERROR, "engine-cannot-aggregate", sentence)


def _routed(subject: _Subject) -> Iterable[FindingView]:
    recipe, simulated = subject.recipe, all_simulated(subject.fleets)
    if subject.stage.topology.mode is Mode.AGGREGATED or recipe.protocol in (SIMULATED_PROTOCOLS if simulated else ROUTED_PROTOCOLS):
        return
    hands = f"recipe {recipe.name} hands KV over by {recipe.protocol}, which"
    if simulated:
        sentence = f"{hands} the simulated engine does not speak; it uses {SIMULATED_PROTOCOLS[0]} instead"
        yield subject.finding(Severity.WARN, "protocol-replaced", sentence)
    else:
        cure = "write `topology: { mode: aggregated, gpus: N }`, or take another engine's recipe"
        yield subject.finding(Severity.ERROR, "engine-cannot-disaggregate", f"{hands} the router does not speak; {cure}")


def _divides(subject: _Subject) -> Iterable[FindingView]:
    for pool in subject.unit.pools:
        wrong = _indivisible(pool, subject)
        if wrong:
            fits = _divisors(pool, subject)
            yield subject.finding(
                Severity.ERROR, "parallelism-not-divisible", f"{pool.role.value} of {_gpus(pool.gpus)}: {wrong}", fits=fits
            )


def _indivisible(pool: PoolSpec, subject: _Subject) -> str:
    """Why the GPUs of a replica cannot split the model evenly; empty when they can."""
    recipe, rules = subject.recipe, subject.rules(pool.role)
    width, heads, experts = rules.tensor_parallel(pool.gpus), recipe.shape.heads, recipe.shape.experts
    if pool.gpus % width:
        return f"they are no multiple of the tensor parallelism {width}"
    if heads % width and (recipe.parallelism is Parallelism.TENSOR or rules.max_tensor_parallel is not None):
        return f"tensor parallelism {width} does not divide the {heads} attention heads"
    if recipe.parallelism is Parallelism.EXPERT and not recipe.redundant_experts and experts % pool.gpus:
        return f"they do not divide the {experts} experts"
    return ""


def _divisors(pool: PoolSpec, subject: _Subject) -> str:
    """The nearest GPU counts that would do: `2 or 4 GPUs`."""
    near = [count for count in range(1, 2 * pool.gpus + 1) if not _indivisible(replace(pool, gpus=count), subject)]
    below = [count for count in near if count < pool.gpus][-1:]
    above = [count for count in near if count > pool.gpus][:1]
    return " or ".join(str(count) for count in below + above) + " GPUs" if below or above else ""


def _hetero(subject: _Subject) -> Iterable[FindingView]:
    widths = {pool.role: pool.engine.tensor_parallel for pool in subject.unit.pools}
    prefill, decode = widths.get(Role.PREFILL), widths.get(Role.DECODE)
    if prefill is None or decode is None or prefill == decode:
        return
    both = f"prefill has tensor parallelism {prefill} and decode {decode}"
    if not subject.recipe.hetero_tensor_parallel:
        sentence = f"{both}; {subject.recipe.name} hands KV over only between equal ones"
        yield subject.finding(Severity.ERROR, "hetero-tensor-parallel-unsupported", sentence)
    elif max(prefill, decode) % min(prefill, decode):
        yield subject.finding(Severity.ERROR, "hetero-tensor-parallel-unsupported", f"{both}; one must be a multiple of the other")


def _any_placement(subject: _Subject) -> Iterable[FindingView]:
    if subject.stage.topology.placement is PlacementRule.ANY and subject.stage.topology.mode is Mode.DISAGGREGATED:
        sentence = "placement is any: KV may cross the network between domains, and nobody has measured how long that takes here"
        yield subject.finding(Severity.WARN, "any-placement-unmeasured", sentence)


def _small_model(subject: _Subject) -> Iterable[FindingView]:
    params = subject.recipe.shape.total_params
    if params < LARGE_MODEL_PARAMS and subject.stage.topology.mode is Mode.DISAGGREGATED:
        size = f"{params / 1e9:.3g} billion" if params >= 1e9 else f"{params:,.0f}"
        least = f"{LARGE_MODEL_PARAMS / 1e9:.0f} billion"
        sentence = f"the model has {size} parameters; below {least} an aggregated topology usually serves more per GPU"
        yield subject.finding(Severity.ADVICE, "small-model-disaggregated", sentence)


def _faults(subject: _Subject) -> Iterable[FindingView]:
    real = [fleet.name for fleet in subject.fleets if not fleet.simulated]
    if real and any(faults != _NO_FAULTS for faults in subject.release.faults.values()):
        sentence = (
            f"simulated-faults are for simulated fleets, and {' and '.join(real)} {'is' if len(real) == 1 else 'are'} real; remove them"
        )
        yield subject.finding(Severity.ERROR, "faults-on-real-fleet", sentence)


def _engine_starts(subject: _Subject) -> Iterable[FindingView]:
    for code, sentence in engine_refusals(subject.unit, subject.fleets):
        yield subject.finding(Severity.ERROR, code, sentence)


_CHECKS: tuple[Callable[[_Subject], Iterable[FindingView]], ...] = (
    _placed,
    _gpu_kinds,
    _weights_fit,
    _enough_gpus,
    _disaggregates,
    _routed,
    _divides,
    _hetero,
    _any_placement,
    _small_model,
    _faults,
    _engine_starts,
)
