"""The toy engine as a device that works by itself: a step runs when it is waited for or has to come after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.step_result import ArrayResult, StepResult
from hybridge.runtime.sampling import NO_SAMPLING, TokenSampling
from tests.runtime.toy_paged_engine import ToyPagedEngine


class LateResult(StepResult):
    """Of a step that has been launched."""

    def __init__(self, engine: AheadToyEngine, inputs: PackedInputs) -> None:
        self._engine, self._inputs = engine, inputs
        self._found: ArrayResult | Exception | None = None

    @property
    def is_ready(self) -> bool:
        return self._found is not None

    def run(self) -> None:
        """Run the step, unless it has run."""
        if self._found is None:
            self._engine.pending = None
            try:
                self._found = ArrayResult(self._engine.step(self._inputs))
            except Exception as error:
                self._found = error

    def _result(self) -> ArrayResult:
        self.run()
        if isinstance(self._found, Exception):
            raise self._found
        assert self._found is not None
        return self._found

    def best_tokens(self) -> list[int | None]:
        return self._result().best_tokens()

    def logits(self, index: int) -> np.ndarray:
        return self._result().logits(index)


class AheadToyEngine(ToyPagedEngine):
    """``pending`` is the step that has been launched but not run; all other calls come after it."""

    pending: LateResult | None = None

    @property
    def runs_ahead(self) -> bool:
        return True

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> StepResult:
        assert self.pending is None, "a step is launched while another one runs"
        self.pending = LateResult(self, inputs)
        return self.pending

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._catch_up()
        super().copy_blocks(sources, targets)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._catch_up()
        super().copy_slots(sources, targets)

    def zero_slots(self, slots: Sequence[int]) -> None:
        self._catch_up()
        super().zero_slots(slots)

    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> HostCopy:
        self._catch_up()
        return super().swap_out(blocks, slots)

    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._catch_up()
        super().swap_in(copy, blocks, slots)

    def _catch_up(self) -> None:
        if self.pending is not None:
            self.pending.run()
