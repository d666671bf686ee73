"""The reference's results for an observation of the artifact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from hybridge.verification.long_windows import LongWindowRow
from hybridge.verification.observation import FAR_SCENARIOS, Observation
from hybridge.verification.reference import Reference, ReferenceRun


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


@dataclass(frozen=True)
class StoredRuns(Expected):
    """Runs on the tokens, computed once: of each prompt, of each sequence and of each row with filled caches.

    The logits are those of each prompt's last token and of the decode tokens only.
    """

    inputs: Inputs
    at_prompt: list[ReferenceRun]
    at_end: list[ReferenceRun]
    at_long_window: list[ReferenceRun]

    def run(self, observation: Observation) -> ReferenceRun:
        if observation.scenario in FAR_SCENARIOS:
            run = self.at_long_window[observation.prompt]
            new = observation.length - self.inputs.long_rows[observation.prompt].caches.length
            return replace(run, logits=run.logits[new - 1 : new])
        decoded = observation.length - len(self.inputs.prompts[observation.prompt])
        end = self.at_end[observation.prompt]
        run = self.at_prompt[observation.prompt] if decoded == 0 else end
        return replace(run, logits=end.logits[decoded : decoded + 1])


@dataclass(frozen=True)
class ForcedRuns(Expected):
    """A run for each observation, in which layers, the head and rounded products get their inputs of the artifact."""

    inputs: Inputs
    reference: Reference

    def run(self, observation: Observation) -> ReferenceRun:
        assert observation.embeddings is not None
        given = (observation.embeddings, *observation.hidden)
        if observation.scenario in FAR_SCENARIOS:
            row = self.inputs.long_rows[observation.prompt]
            return self.reference.run(row.tokens[: len(given[0])], row.caches, 1, given, observation.inputs)
        tokens = self.inputs.sequences[observation.prompt][: observation.length]
        return self.reference.run(tokens, None, 1, given, observation.inputs)

    def with_ties_swapped(self, observation: Observation) -> ReferenceRun:
        with self.reference.ties_swapped():
            return self.run(observation)
