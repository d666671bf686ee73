"""The reference's results for an observation of the artifact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.verification.long_windows import LongWindowRow
from hybridge.verification.observation import FAR_SCENARIOS, Observation
from hybridge.verification.reference import Reference, ReferenceRun
from hybridge.verification.stepped_run import SteppedRun

# Of each prompt: a row of draft tokens continues from the same step several times.
_STORED_RUNS = 4


@dataclass(frozen=True)
class Inputs:
    """Random prompts, the same with decode tokens after them, and rows with filled caches."""

    prompts: list[np.ndarray]
    sequences: list[np.ndarray]
    long_rows: tuple[LongWindowRow, ...]


class Expected(ABC):
    """The reference's results for observations of ``inputs``."""

    @abstractmethod
    def run(self, observation: Observation) -> ReferenceRun:
        """The run whose states and logits [1, vocab] belong to the observation's last token."""

    def with_ties_swapped(self, observation: Observation) -> ReferenceRun | None:
        """The same run, but inputs almost halfway between two representable numbers round to the other one.

        None where that cannot be told apart from a fault.
        """
        return None

    def with_own_inputs(self, observation: Observation, rounded: bool = False) -> ReferenceRun | None:
        """The same run, but layers, the head and routers get their inputs in the artifact.

        None where ``run`` gives them these already, or the observation does not show them. rounded: products round
        their outputs to the engine's type of 16 bits; None where it has another type.
        """
        return None


@dataclass(frozen=True)
class StoredRuns(Expected):
    """Runs on the tokens, computed once: of each prompt, of each sequence and of each row with filled caches.

    The logits are those of each prompt's last token and of the decode tokens only. reopened: loads the
    reference again, of an artifact or engine that rounds; it knows the artifact's routers. computed: the engine's type
    of 16 bits, None for float32.
    """

    inputs: Inputs
    at_prompt: list[ReferenceRun]
    at_end: list[ReferenceRun]
    at_long_window: list[ReferenceRun]
    reopened: Callable[[], Reference] | None = None
    computed: DType | None = None

    def run(self, observation: Observation) -> ReferenceRun:
        if observation.scenario in FAR_SCENARIOS:
            run = self.at_long_window[observation.prompt]
            new = observation.length - self.inputs.long_rows[observation.prompt].caches.length
            return replace(run, logits=run.logits[new - 1 : new])
        decoded = observation.length - len(self.inputs.prompts[observation.prompt])
        end = self.at_end[observation.prompt]
        run = self.at_prompt[observation.prompt] if decoded == 0 else end
        return replace(run, logits=end.logits[decoded : decoded + 1])

    def with_own_inputs(self, observation: Observation, rounded: bool = False) -> ReferenceRun | None:
        if self.reopened is None or observation.embeddings is None or (rounded and self.computed is None):
            return None
        reference = self.reopened()
        with reference.rounded_outputs(self.computed if rounded else None):
            return _with_inputs(reference, self.inputs, observation)


@dataclass(frozen=True)
class ForcedRuns(Expected):
    """A run for each observation, in which layers, the head and rounded products get their inputs of the artifact."""

    inputs: Inputs
    reference: Reference

    def run(self, observation: Observation) -> ReferenceRun:
        return _with_inputs(self.reference, self.inputs, observation)

    def with_ties_swapped(self, observation: Observation) -> ReferenceRun:
        with self.reference.ties_swapped():
            return self.run(observation)


@dataclass(frozen=True)
class SteppedRuns(Expected):
    """A run for each observation in the steps of its row, after each of which the reference rounds its states.

    forced: as in ``ForcedRuns``. Other runs continue earlier ones, of which the last of each prompt are stored.
    computed: as in ``StoredRuns``.
    """

    inputs: Inputs
    reference: Reference
    forced: bool
    computed: DType | None = None
    stored: dict[tuple[int, tuple[int, ...]], SteppedRun] = field(default_factory=dict)

    def run(self, observation: Observation) -> ReferenceRun:
        tokens = self._tokens(observation)
        if self.forced:
            return self._with_inputs(observation)
        parts = observation.parts
        count = next((n for n in range(len(parts), 0, -1) if (observation.prompt, parts[:n]) in self.stored), 0)
        before = self.stored[observation.prompt, parts[:count]] if count else SteppedRun(self.reference)
        found = before.fed(tokens[sum(parts[:count]) :], parts[count:])
        self.stored[observation.prompt, parts] = found
        own = [key for key in self.stored if key[0] == observation.prompt]
        for key in own[:-_STORED_RUNS]:
            del self.stored[key]
        return found.run

    def with_ties_swapped(self, observation: Observation) -> ReferenceRun | None:
        if not self.forced:
            return None
        with self.reference.ties_swapped():
            return self.run(observation)

    def with_own_inputs(self, observation: Observation, rounded: bool = False) -> ReferenceRun | None:
        if self.forced or observation.embeddings is None or (rounded and self.computed is None):
            return None
        with self.reference.rounded_outputs(self.computed if rounded else None):
            return self._with_inputs(observation)

    def _tokens(self, observation: Observation) -> np.ndarray:
        return self.inputs.sequences[observation.prompt][: observation.length]

    def _with_inputs(self, observation: Observation) -> ReferenceRun:
        fed = SteppedRun(self.reference).fed(
            self._tokens(observation), observation.parts, observation.layer_inputs, observation.inputs
        )
        return fed.run


def _with_inputs(reference: Reference, inputs: Inputs, observation: Observation) -> ReferenceRun:
    """The run of an observation with the inputs of layers, the head, products and routers that it shows."""
    layers = observation.layer_inputs
    if observation.scenario in FAR_SCENARIOS:
        row = inputs.long_rows[observation.prompt]
        tokens = row.tokens[: observation.length - row.caches.length]
        return reference.run(tokens, row.caches, 1, layers, observation.inputs)
    tokens = inputs.sequences[observation.prompt][: observation.length]
    return reference.run(tokens, None, 1, layers, observation.inputs)
