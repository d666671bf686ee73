"""Steps of rows of any length on a GPU, recorded in one CUDA graph for each shape that comes again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hybridge.artifact.names import LOGITS, QUERY_START_LOC, SEQ_LENS
from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.torch.best_tokens import BestTokens
from hybridge.runtime.engines.torch.deferred_states import DeferredStates
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.packed_buffers import PackedBuffers, StepSize
from hybridge.runtime.engines.torch.paged_pools import TorchPools
from hybridge.runtime.engines.torch.paged_result import TorchStepResult
from hybridge.runtime.engines.torch.program import StepProgram
from hybridge.runtime.engines.torch.recording import RepeatedWork
from hybridge.runtime.engines.torch.row_feeding import RowFeeding
from hybridge.runtime.engines.torch.sampling_memory import TorchSampling
from hybridge.runtime.engines.torch.step_rows import StepRows
from hybridge.runtime.engines.torch.stored_calls import StoredCalls


@dataclass(frozen=True)
class StepShape:
    """Parameters of the kernel calls of a step.

    split: rows before it have at most one token. longest: no row has more. drafts: one less than the slots of a row,
    in steps with draft tokens.
    """

    size: StepSize
    split: int
    longest: int
    drafts: int = 0


def rows_in(buffers: PackedBuffers, shape: StepShape, stored: StoredCalls | None = None) -> StepRows:
    """The rows of the step that is in ``buffers``. ``stored``: as in StepRows."""
    counts = np.diff(buffers.arrays[QUERY_START_LOC]).tolist()
    lengths = buffers.arrays[SEQ_LENS].tolist()
    return StepRows(buffers.tensors[QUERY_START_LOC], tuple(counts), tuple(lengths), shape.split, shape.longest, stored)


class PackedStep:
    """Steps of one shape: how many tokens each row has is in device memory, so that one graph serves all of them.

    Further rows have no tokens, further tokens belong to no row, and touch nothing.
    """

    def __init__(
        self,
        device: TorchDevice,
        program: StepProgram,
        pools: TorchPools,
        shape: StepShape,
        deferred: DeferredStates | None = None,
        chooser: TorchSampling | None = None,
        chains: bool = False,
    ) -> None:
        """``deferred``: what gets the calls that may be run again, of steps with draft tokens.

        ``chooser``: samples tokens in the step; None: the step only finds the most likely ones. ``chains``: whether it
        may be launched while the step before it runs.
        """
        self._deferred, self._chooser = deferred, chooser
        self._feeding = RowFeeding(device, shape.split) if chains and shape.split else None
        self._done = torch.cuda.Event() if chains and device.is_gpu else None
        self._calls: StoredCalls | None = None
        self._device, self._program, self._shape = device, program, shape
        self._buffers = PackedBuffers(device, shape.size, shape.drafts, program.extra)
        self._feeds = {**self._buffers.tensors, **pools.tensors}
        self._greedy = BestTokens(device, shape.size.logits)
        self._best = self._greedy.array if chooser is None else chooser.best
        self._logits: torch.Tensor | None = None
        self.repeated = RepeatedWork(device, self._work)

    @property
    def logits(self) -> int:
        """Rows of logits, padding included."""
        return self._shape.size.logits

    def launch(
        self,
        inputs: PackedInputs,
        split: tuple[int, int] = (0, 0),
        after: TorchSampling | None = None,
        fed: tuple[TorchStepResult, Feeding] | None = None,
    ) -> TorchStepResult:
        """Enqueue the step ``inputs``, which is no larger; its last run must be done.

        split: as in ``PackedBuffers.fill``. after: samples the tokens after the step. fed: the step before it, whose
        tokens its first rows get.
        """
        self._buffers.fill(inputs, split=split)
        if self._feeding is not None:
            fed[0].feed(self._feeding, fed[1]) if fed is not None else self._feeding.tables.feed_nothing()
        with self._device.active():
            self.repeated.run()
            assert self._logits is not None
            if after is not None:
                after.enqueue(self._logits)
        if self._deferred is not None and self._calls is not None:
            self._deferred.ran(self._calls)
        if self._done is not None:
            self._done.record(self._device.stream)
        requested, chooser = slice(0, len(inputs.logits_indices)), after or self._chooser
        tokens = self._greedy.tokens if chooser is None else chooser.tokens
        return TorchStepResult(self._device, self._best, self._logits, requested, chooser, self._done, tokens)

    def _work(self) -> None:
        self._buffers.upload(self._feeding)
        stored = None if self._deferred is None else self._deferred.calls(self._shape.size, self._buffers.tensors)
        found = self._program.run({**self._feeds, QUERY_START_LOC: self._rows(stored)})
        self._logits = found[LOGITS]
        if stored is not None:
            stored.finish()
            self._calls = stored
        if self._chooser is None:
            self._greedy.enqueue(found)
        else:
            self._chooser.enqueue(self._logits)

    def _rows(self, stored: StoredCalls | None) -> StepRows:
        if self.repeated.is_recording:
            bounds = self._buffers.tensors[QUERY_START_LOC]
            return StepRows(bounds, None, None, self._shape.split, self._shape.longest, stored)
        return rows_in(self._buffers, self._shape, stored)
