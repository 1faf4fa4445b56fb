"""What an engine needs beside its command line: weights on the node, and the secrets that its release names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from denvweb.core.errors import UnavailableError
from fleets.agent.ranks import Run
from fleets.agent.weights.headers import read_checkpoint
from fleets.agent.weights.store import WeightsStatus, WeightsStore
from fleets.domain.protocol import NodeFacts, RankSpec
from fleets.domain.rank_fit import context_tokens, rank_fit
from fleets.domain.safetensors import Checkpoint
from fleets.domain.types import RankDesired


class Supplies:
    """Those of one node. Simulated nodes need no weights."""

    def __init__(self, facts: NodeFacts, weights: WeightsStore | None, on_change: Callable[[], None]) -> None:
        self.given: Mapping[str, str] = {}  # values of secrets by name, as the last snapshot had them
        self._facts = facts
        self._weights = None if facts.simulated else weights
        self._checkpoints: dict[str, Checkpoint | None] = {}  # by folder
        if self._weights is not None:
            self._weights.subscribe(on_change)

    def weights_for(self, run: Run) -> WeightsStatus | None:
        """How the weights are of a rank that will be started; None for one that will not, or is.

        They come while it waits for its gang, too, so that all of a gang have theirs when it starts.
        """
        if run.process is not None or run.failed or run.spec.desired not in (RankDesired.HOLD, RankDesired.RUN):
            return None
        status = self._status(run.spec)
        return self._fitting(run.spec, status) if status.path else status

    def path_for(self, spec: RankSpec) -> str:
        """Where its weights are; empty when its engine is to find them itself."""
        return self._status(spec).path

    def sentence(self, run: Run) -> str:
        """How far the weights of a rank are that waits for them; empty for others."""
        return self._weights.status(run.spec.engine.weights).sentence if run.fetching and self._weights is not None else ""

    def secrets_for(self, spec: RankSpec) -> dict[str, str]:
        """Values by variable; UnavailableError when the control plane has given none for one of them."""
        known = self._known_secrets(spec)
        if missing := sorted(name for variable, name in spec.engine.secrets.items() if variable not in known):
            raise UnavailableError(f"the control plane has no secret {', '.join(missing)} any more; `denv secret set` stores one")
        return known

    def secret_values(self, run: Run | None) -> tuple[str, ...]:
        """What must not be seen of a rank; of one that is not known, everything."""
        return tuple(self.given.values()) if run is None else tuple(self._known_secrets(run.spec).values())

    def _known_secrets(self, spec: RankSpec) -> dict[str, str]:
        return {variable: self.given[name] for variable, name in spec.engine.secrets.items() if name in self.given}

    def _status(self, spec: RankSpec) -> WeightsStatus:
        if self._weights is None:
            return WeightsStatus(ready=True)
        return self._weights.want(spec.engine.weights, self._known_secrets(spec))

    def _fitting(self, spec: RankSpec, status: WeightsStatus) -> WeightsStatus:
        """Refuse weights that are more than the memory of their GPUs: an engine would find out after loading them for minutes."""
        memory_bytes, path = self._facts.gpu_memory_bytes, status.path
        if not memory_bytes:
            return status
        if path not in self._checkpoints:
            self._checkpoints[path] = read_checkpoint(Path(path))
        model = self._checkpoints[path]
        if model is None:
            return status
        fit = rank_fit(
            model,
            memory_bytes=memory_bytes,
            gpus=len(spec.gpus) * spec.count,
            tensor_parallel=spec.engine.tensor_parallel,
            context=context_tokens(spec.engine),
            kv_value_bytes=1.0 if "8" in spec.engine.kv_dtype else 2.0,
        )
        return WeightsStatus(failed=f"weights do not fit: {fit.arithmetic}") if fit.hopeless else status
