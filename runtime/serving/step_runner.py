"""The interface of objects that run an engine's steps for the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import NO_SAMPLING, TokenSampling
from hybridge.runtime.scheduler import PlannedRow


@runtime_checkable
class StepRunner(Protocol):
    """Runs the steps of an engine, to see more of them than their result."""

    def launch(
        self,
        engine: PagedEngine,
        inputs: PackedInputs,
        rows: Sequence[PlannedRow],
        samplings: Mapping[int, TokenSampling] = NO_SAMPLING,
    ) -> StepResult:
        """As ``engine.launch(inputs, samplings)``. The first rows of ``inputs`` are ``rows``, any others are padding.

        Errors outside of the engine's own step end no request: ``Drafter.propose`` raises them at its next call.
        """

    def fork(self, parent: int, child: int) -> None:
        """``child`` is a fork of ``parent``: both share what the last step computed."""
