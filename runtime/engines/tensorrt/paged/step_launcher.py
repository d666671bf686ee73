"""Launches the steps of a paged engine, in parts that fit its profiles, and tracks those in flight."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.feeding_tables import can_feed, token_rows
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.tensorrt.memory import DeviceMemory
from hybridge.runtime.engines.tensorrt.paged.draft_rows import DraftRows
from hybridge.runtime.engines.tensorrt.paged.paged_steps import PagedSteps
from hybridge.runtime.engines.tensorrt.paged.pools import DevicePools
from hybridge.runtime.engines.tensorrt.paged.result import DeviceResult
from hybridge.runtime.engines.tensorrt.paged.shown_states import ShownStates
from hybridge.runtime.engines.tensorrt.paged.step_bindings import StepBindings
from hybridge.runtime.engines.tensorrt.paged.step_output import StepOutput
from hybridge.runtime.engines.tensorrt.paged.step_parts import StepPart, step_parts
from hybridge.runtime.engines.tensorrt.pending_step import PendingStep
from hybridge.runtime.sampling import CHOSEN_LATER, NO_SAMPLING, TokenSampling


class StepLauncher:
    """At most two steps are in flight: the second is launched before the first ends."""

    def __init__(
        self, memory: DeviceMemory, bindings: StepBindings, steps: PagedSteps, drafts: DraftRows, shown: ShownStates
    ) -> None:
        self._bindings, self._steps, self._drafts, self._shown = bindings, steps, drafts, shown
        self._vocab = bindings.vocab_size
        self._pending: list[PendingStep[StepOutput]] = []
        # Of the last part of the last step that ``launch`` has enqueued.
        self._unchosen: StepOutput | None = None
        self._markers = [memory.marker() for _ in range(1 + bindings.chains)]

    def launch(self, inputs: PackedInputs, pools: DevicePools, samplings: Mapping[int, TokenSampling]) -> DeviceResult:
        """As ``PagedEngine.launch``."""
        # The pinned inputs and logits of the previous step are about to be overwritten.
        self.finish()
        self._drafts.forget()
        *first, last = step_parts(inputs, self._bindings.row_tokens, self._bindings.largest.logits)
        before = np.empty((len(inputs.logits_indices) if first else 0, self._vocab), np.float32)
        for part in first:
            pending = self._recorded(self._enqueue(part, inputs, pools, NO_SAMPLING))
            before[part.logits] = DeviceResult(pending, before[:0], part.logits).all_logits()
        here = samplings if samplings is CHOSEN_LATER else _of_part(samplings, last.logits)
        output = self._unchosen = self._enqueue(last, inputs, pools, here)
        if first:
            self._shown.join(inputs)
        self._pending.append(self._recorded(output))
        tokens = None if first else output.tokens
        return DeviceResult(self._pending[-1], before, last.logits, tokens, output.rows.tolist())

    def choose(self, result: DeviceResult, samplings: Mapping[int, TokenSampling]) -> DeviceResult:
        """As ``PagedEngine.choose``."""
        assert self._unchosen is not None and result.is_of(self._pending[-1]), "another step was launched last"
        output = self._steps.choose(self._unchosen, _of_part(samplings, result.last))
        # The marker is recorded again, behind the sampling.
        self._markers.insert(0, self._markers.pop())
        self._pending[-1] = self._recorded(output)
        return DeviceResult(self._pending[-1], result.before, result.last)

    def launch_next(
        self, result: DeviceResult, inputs: PackedInputs, pools: DevicePools, feeding: Feeding
    ) -> DeviceResult | None:
        """As ``PagedEngine.launch_next``."""
        tokens = result.tokens
        if tokens is None or feeding.sources is not None or not can_feed(feeding.stops):
            return None  # only steps of the same rows are chained
        assert self._pending and result.is_of(self._pending[-1]), "another step was launched after that of the result"
        # The pinned inputs of the step before the previous one are about to be overwritten.
        self.finish(keep=1)
        output = self._steps.run_next(inputs, pools, tokens, feeding, token_rows(feeding, result.token_rows))
        if output is None:
            return None
        result.lose_logits()
        self._pending.append(self._recorded(output))
        before = np.empty((0, self._vocab), np.float32)
        return DeviceResult(self._pending[-1], before, output.rows, output.tokens, output.rows.tolist())

    def wait(self) -> None:
        """Wait for all steps; EngineError when one failed."""
        for pending in self._pending:
            pending.wait()

    def finish(self, keep: int = 0) -> None:
        """Wait for all steps but the last ``keep``, whose results can no longer be read."""
        while len(self._pending) > keep:
            self._pending.pop(0).finish()

    def close(self) -> None:
        """Release the markers; calling it twice is allowed."""
        for marker in self._markers:
            marker.close()

    def _enqueue(
        self, part: StepPart, whole: PackedInputs, pools: DevicePools, samplings: Mapping[int, TokenSampling]
    ) -> StepOutput:
        """Enqueue one part of the step ``whole``; samplings: by index of the part's logits."""
        inputs, deferred = self._drafts.inputs(part, pools)
        output = self._steps.run(inputs, pools, samplings)
        if deferred is not None:
            self._drafts.defer(deferred, part, len(whole.seq_lens), output.arrays, pools)
        self._shown.collect(part, whole)
        return output

    def _recorded(self, output: StepOutput) -> PendingStep[StepOutput]:
        """The pending step of ``output``, with a marker recorded on the stream, reused from a finished step."""
        marker = self._markers.pop(0)
        self._markers.append(marker)
        marker.record()
        return PendingStep(marker, lambda: output)


def _of_part(samplings: Mapping[int, TokenSampling], logits: np.ndarray) -> dict[int, TokenSampling]:
    """``samplings`` of a step by index in ``logits``, which are those of one part of it."""
    own = {index: place for place, index in enumerate(logits.tolist())}
    return {own[index]: how for index, how in samplings.items() if index in own}
