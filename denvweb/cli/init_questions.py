"""What `denv init` asks, with what it says of each word, its defaults, and what makes of the answers a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from denvweb.cli.client import Client
from denvweb.core.errors import DenvError
from denvweb.core.words import did_you_mean
from fleets.domain.hardware import GPUS
from fleets.domain.types import Role
from fleets.domain.views import FleetMap
from releases.catalog import catalog
from releases.domain.recipes import Recipe
from releases.domain.spec import ReleaseFile, parse

Answers = Mapping[str, str]

_WEIGHTS_SHARE = 0.7  # of a GPU's memory that weights may take in a first file, so that there is room for KV
_TEXT = """\
# yaml-language-server: $schema={schema}
# By `denv init`; an editor that reads the line above explains each key. `denv release --dry-run` says whether it fits.
release:
  model: {model}
  weights: {weights}
  recipe: {recipe}
  topology: {topology}
stages:
  {stage}:
    fleets: [{fleet}]
    replicas: {units}
    alarms: {{ ttft-p99: {ttft}, itl-p99: {itl}, error-rate: 1% }}
    rollout: {{ canary: 10%, steps: [50%, 100%], hold: 10m, bake: 30m }}
"""


@dataclass(frozen=True, slots=True)
class Known:
    """What the control plane has to offer; where none answers, the recipes that denv brings, and no fleet."""

    recipes: tuple[str, ...]
    fleets: Mapping[str, str]  # its kind of GPU by name
    online: bool


def look() -> Known:
    """Ask the control plane that the command is logged in to; it has two seconds."""
    try:
        fleets = {fleet.fleet: fleet.gpu_kind for fleet in Client(timeout_s=2.0).get_list("fleets", FleetMap)}
    except DenvError:
        return Known(tuple(catalog()), {}, online=False)
    return Known(tuple(catalog()), fleets, online=True)


@dataclass(frozen=True, slots=True)
class Question:
    """One value of the file. `path` is where a mistake in it is found; `needed` ones have no default that suits everybody."""

    name: str
    text: str
    about: str
    path: str
    default: Callable[[Known, Answers], str]
    offers: Callable[[Known], tuple[str, ...]] = lambda known: ()
    applies: Callable[[Answers, Known], bool] = lambda answers, known: True
    needed: bool = False


def _recipe(answers: Answers) -> Recipe | None:
    return catalog().get(answers.get("recipe", ""))


def _kind(known: Known, answers: Answers) -> str:
    return known.fleets.get(answers.get("fleet", "").partition(",")[0].strip(), "")


def _default_recipe(known: Known, answers: Answers) -> str:
    kinds = set(known.fleets.values())
    suiting = [name for name in known.recipes if kinds & set(catalog()[name].gpu_kinds)]
    return (suiting or list(known.recipes))[0]


def _default_model(known: Known, answers: Answers) -> str:
    return answers.get("recipe", "").partition("/")[0]


def _default_weights(known: Known, answers: Answers) -> str:
    return f"hf://your-org/{answers.get('model', 'model')}@your-revision"


def _default_fleet(known: Known, answers: Answers) -> str:
    recipe = _recipe(answers)
    suiting = [name for name, kind in known.fleets.items() if recipe is None or kind in recipe.gpu_kinds]
    return (suiting or list(known.fleets) or [""])[0]


def _default_pool(role: Role) -> Callable[[Known, Answers], str]:
    """The fewest GPUs, doubled from the recipe's least, that hold the weights with room for KV; one replica."""

    def default(known: Known, answers: Answers) -> str:
        recipe, kind = _recipe(answers), _kind(known, answers)
        if recipe is None or role not in recipe.roles:
            return "1x1"
        gpus = recipe.roles[role].min_gpus
        if kind in GPUS:
            while gpus * GPUS[kind].memory_bytes * _WEIGHTS_SHARE < recipe.shape.weight_bytes and gpus < 512:
                gpus *= 2
        return f"{gpus}x1"

    return default


def _in_pools(answers: Answers, known: Known) -> bool:
    recipe = _recipe(answers)
    return "aggregated" not in answers and (recipe is None or recipe.can_disaggregate)


def _in_one(answers: Answers, known: Known) -> bool:
    return not _in_pools(answers, known) and not {"prefill", "decode"} & set(answers)


def _same(value: str) -> Callable[[Known, Answers], str]:
    return lambda known, answers: value


_POOL = "GPUs of a replica x replicas, such as 4x2"
QUESTIONS: tuple[Question, ...] = (
    Question("recipe", "Recipe", "how this model runs on an engine, with tested flags", "release.recipe", _default_recipe,
             offers=lambda known: known.recipes, needed=True),
    Question("model", "Model", "what clients will ask for by name", "release.model", _default_model, needed=True),
    Question("weights", "Weights", "hf://org/name@revision, or file:///path@digest; pinned, so that a release stays what it was",
             "release.weights", _default_weights, needed=True),
    Question("fleet", "Fleets", "where it may run, best first, with commas between; `denv fleets` lists them", "stages.{stage}.fleets",
             _default_fleet, offers=lambda known: tuple(known.fleets), needed=True),
    Question("prefill", "Prefill pool", f"computes prompts, and sets TTFT; {_POOL}", "release.topology.prefill",
             _default_pool(Role.PREFILL), applies=_in_pools),
    Question("decode", "Decode pool", f"computes the answers' tokens, and sets ITL; {_POOL}", "release.topology.decode",
             _default_pool(Role.DECODE), applies=_in_pools),
    Question("aggregated", "Pool", f"does both, for this engine cannot disaggregate; {_POOL}", "release.topology.aggregated",
             _default_pool(Role.AGGREGATED), applies=_in_one),
    Question("stage", "Stage", "where the release is rolled out first", "stages", _same("prod")),
    Question("units", "Serving units", "how many; of two, one serves while the other is replaced", "stages.{stage}.replicas", _same("1")),
    Question("ttft", "TTFT limit", "time to first token, p99: over it a rollout goes back by itself", "stages.{stage}.alarms.ttft-p99",
             _same("1500ms")),
    Question("itl", "ITL limit", "gap between two tokens, p99, in the same way", "stages.{stage}.alarms.itl-p99", _same("60ms")),
)  # fmt: skip

_STAND_INS = {
    "recipe": "llama-3.1-70b/vllm@1", "model": "m", "weights": "hf://o/m@r", "fleet": "f", "prefill": "1x1", "decode": "1x1",
    "stage": "prod", "units": "1", "ttft": "1500ms", "itl": "60ms",
}  # fmt: skip


def problem(question: Question, given: str, answers: Answers, known: Known) -> str:
    """What is wrong with an answer, by the reader of release files itself; empty when nothing is."""
    if question.name == "recipe" and given not in known.recipes:
        return f"{given} is no recipe{did_you_mean(given, known.recipes) or '; `denv recipes` lists them'}"
    if question.name == "fleet" and known.fleets:
        for name in given.split(","):
            if name.strip() not in known.fleets:
                return f"there is no fleet {name.strip()}{did_you_mean(name.strip(), known.fleets)}"
    if question.name in ("prefill", "decode", "aggregated") and not _POOL_FORM.fullmatch(given.strip()):
        return f"`{given}` is no pool; write {_POOL}"
    tried = {**_STAND_INS, **{name: value for name, value in answers.items() if name == "aggregated"}, question.name: given}
    found = parse(render(tried, schema="http://x"))
    if isinstance(found, ReleaseFile):
        return ""
    path = question.path.format(stage=tried["stage"])
    return next((error.sentence for error in found if error.path.startswith(path) or not error.path), "")


_POOL_FORM = re.compile(r"[1-9]\d{0,3}([xX][1-9]\d{0,3})?")


def _pool(text: str) -> str:
    """`4x2` is two replicas of four GPUs."""
    gpus, _, replicas = text.strip().lower().partition("x")
    return f"{{ gpus: {gpus}, replicas: {replicas or 1} }}"


def render(answers: Answers, *, schema: str) -> str:
    """The file."""
    if "aggregated" in answers:
        topology = f"{{ mode: aggregated, aggregated: {_pool(answers['aggregated'])} }}"
    else:
        topology = f"{{ prefill: {_pool(answers['prefill'])}, decode: {_pool(answers['decode'])} }}"
    return _TEXT.format(schema=schema, topology=topology, **{name: value for name, value in answers.items() if name in _PLAIN})


_PLAIN = ("model", "weights", "recipe", "stage", "fleet", "units", "ttft", "itl")
