"""The toy engine with calls that fail on request, after they have overwritten their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import NO_SAMPLING, TokenSampling
from tests.runtime.toy_ahead_engine import AheadToyEngine, LateResult
from tests.runtime.toy_paged_engine import ToyPagedEngine


class TroubledEngine(ToyPagedEngine):
    """breaks: (name of the call, whether it is interrupted) of the next call of that name that fails. spoils: the
    next step's logits of this index, counted in a circle, are NaN. troubles: how often anything was broken or spoilt.
    """

    breaks: tuple[str, bool] | None = None
    spoils: int | None = None
    troubles = refuses = 0
    pending: LateResult | None = None

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> StepResult:
        self._break("launch")
        return super().launch(inputs, samplings)

    def step(self, inputs: PackedInputs) -> np.ndarray:
        if self.breaks is not None and self.breaks[0] == "step":
            interrupts, self.breaks = self.breaks[1], None
            self.troubles += 1
            self.fail_at = {self.steps + 1}
            try:
                return super().step(inputs)
            except EngineError:
                if interrupts:
                    raise KeyboardInterrupt from None
                raise
        logits = super().step(inputs)
        if self.spoils is not None and len(logits):
            logits[self.spoils % len(logits)] = np.nan
            self.spoils = None
            self.troubles += 1
        return logits

    def advance(self, accepted: np.ndarray) -> None:
        for slot, _ in self._deferred.values():
            self._break("advance", slots=[slot])
        super().advance(accepted)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._break("copy_blocks", blocks=targets)
        super().copy_blocks(sources, targets)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._break("copy_slots", slots=targets)
        super().copy_slots(sources, targets)

    def zero_slots(self, slots: Sequence[int]) -> None:
        self._break("zero_slots", slots=slots)
        super().zero_slots(slots)

    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._break("swap_in", blocks, slots)
        super().swap_in(copy, blocks, slots)

    def _break(self, call: str, blocks: Sequence[int] = (), slots: Sequence[int] = ()) -> None:
        if self.breaks is None or self.breaks[0] != call:
            return
        interrupts, self.breaks = self.breaks[1], None
        self.troubles += 1
        self.poison(blocks, slots)
        if interrupts:
            raise KeyboardInterrupt
        raise EngineError("the toy engine was told to fail")


class TroubledAheadEngine(TroubledEngine, AheadToyEngine):
    """The same, ahead of the host."""

    def launch_next(self, result: StepResult, inputs: PackedInputs, feeding: Feeding) -> StepResult | None:
        self._break("launch")
        return super().launch_next(result, inputs, feeding)
