"""Steps of rows of any length on a GPU, recorded in one CUDA graph for each shape that comes again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hybridge.artifact.names import LOGITS, QUERY_START_LOC, SEQ_LENS
from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.torch.deferred_states import DeferredStates
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.packed_buffers import PackedBuffers, StepSize
from hybridge.runtime.engines.torch.paged_pools import TorchPools
from hybridge.runtime.engines.torch.paged_result import TorchStepResult, best_in
from hybridge.runtime.engines.torch.program import StepProgram
from hybridge.runtime.engines.torch.recording import RepeatedWork
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
    ) -> None:
        """``deferred``: what gets the calls that may be run again, of steps with draft tokens.

        ``chooser``: samples tokens in the step; None: the step only finds the most likely ones.
        """
        self._deferred, self._chooser = deferred, chooser
        self._calls: StoredCalls | None = None
        self._device, self._program, self._shape = device, program, shape
        self._buffers = PackedBuffers(device, shape.size, shape.drafts, program.extra)
        self._feeds = {**self._buffers.tensors, **pools.tensors}
        self._pinned = device.pinned(shape.size.logits, dtype=torch.int64)
        self._best = self._pinned.numpy() if chooser is None else chooser.best
        self._logits: torch.Tensor | None = None
        self.repeated = RepeatedWork(device, self._work)

    def launch(self, inputs: PackedInputs, split: tuple[int, int] = (0, 0)) -> TorchStepResult:
        """Enqueue the step ``inputs``, which is no larger; the stream before it must be done.

        split: as in ``PackedBuffers.fill``.
        """
        self._buffers.fill(inputs, split=split)
        with self._device.active():
            self.repeated.run()
        if self._deferred is not None and self._calls is not None:
            self._deferred.ran(self._calls)
        assert self._logits is not None
        requested = slice(0, len(inputs.logits_indices))
        return TorchStepResult(self._device, self._best, self._logits, requested, self._chooser)

    def _work(self) -> None:
        self._buffers.upload()
        stored = None if self._deferred is None else self._deferred.calls(self._shape.size, self._buffers.tensors)
        found = self._program.run({**self._feeds, QUERY_START_LOC: self._rows(stored)})
        self._logits = found[LOGITS]
        if stored is not None:
            stored.finish()
            self._calls = stored
        if self._chooser is None:
            self._pinned.copy_(best_in(found), non_blocking=True)
        else:
            self._chooser.enqueue(self._logits)

    def _rows(self, stored: StoredCalls | None) -> StepRows:
        if self.repeated.is_recording:
            bounds = self._buffers.tensors[QUERY_START_LOC]
            return StepRows(bounds, None, None, self._shape.split, self._shape.longest, stored)
        return rows_in(self._buffers, self._shape, stored)
