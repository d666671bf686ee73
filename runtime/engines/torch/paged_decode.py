"""Decoding on a GPU: one token per row, recorded in one CUDA graph for each size of step."""

from __future__ import annotations

import numpy as np
import torch

from hybridge.artifact.names import LOGITS, LOGITS_INDICES, QUERY_START_LOC
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.torch.best_tokens import BestTokens
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.packed_buffers import PackedBuffers, StepSize
from hybridge.runtime.engines.torch.paged_pools import TorchPools
from hybridge.runtime.engines.torch.paged_result import TorchStepResult
from hybridge.runtime.engines.torch.program import StepProgram
from hybridge.runtime.engines.torch.recording import RepeatedWork
from hybridge.runtime.engines.torch.row_feeding import RowFeeding
from hybridge.runtime.engines.torch.sampling_memory import TorchSampling
from hybridge.runtime.engines.torch.step_rows import StepRows

# Rows of a recorded step: the smallest of these, or of multiples of the last, that is large enough.
_ROWS = (1, 2, 4, 8)
# Positions that the smallest recorded step can see; larger ones double them as often as needed.
_FIRST_POSITIONS = 256


def padded_rows(rows: int, most: int) -> int:
    """Rows of the recorded step that runs ``rows`` rows, at most ``most``."""
    step = _ROWS[-1]
    return min(most, next((size for size in _ROWS if size >= rows), -(-rows // step) * step))


def padded_blocks(blocks: int, block_size: int) -> int:
    """Columns of the block table of a step whose longest row has ``blocks`` blocks."""
    positions = _FIRST_POSITIONS
    while positions < blocks * block_size:
        positions *= 2
    return max(1, positions // block_size)


class PagedDecodeStep:
    """The step of ``rows`` rows that see ``blocks`` blocks; padding rows touch nothing."""

    def __init__(
        self,
        device: TorchDevice,
        program: StepProgram,
        pools: TorchPools,
        rows: int,
        blocks: int,
        chooser: TorchSampling | None = None,
        feeding: RowFeeding | None = None,
    ) -> None:
        """``chooser``: samples tokens in the step; None: the step only finds the most likely ones.

        ``feeding``: gives the rows their tokens; None: input_ids has them.
        """
        self._device, self._program, self._chooser, self._feeding = device, program, chooser, feeding
        self._buffers = PackedBuffers(device, StepSize(rows, rows, blocks, rows), extra=program.extra)
        arrays = self._buffers.arrays
        arrays[QUERY_START_LOC][...], arrays[LOGITS_INDICES][...] = np.arange(rows + 1), np.arange(rows)
        all_rows = StepRows(self._buffers.tensors[QUERY_START_LOC], (1,) * rows, None, rows, 1)
        self._feeds = {**self._buffers.tensors, **pools.tensors, QUERY_START_LOC: all_rows, LOGITS_INDICES: None}
        self._greedy = BestTokens(device, rows)
        self._best = self._greedy.array if chooser is None else chooser.best
        self._tokens = self._greedy.tokens if chooser is None else chooser.tokens
        self._done = torch.cuda.Event() if device.is_gpu else None
        self._logits: torch.Tensor | None = None
        self.repeated = RepeatedWork(device, self._work)

    def launch(self, inputs: PackedInputs) -> TorchStepResult:
        """Enqueue the step ``inputs``, whose rows have one token each; the step's last run must be done."""
        self.fill(inputs)
        return self.run(inputs)

    def fill(self, inputs: PackedInputs) -> None:
        """Take the arrays of a step; the last run must be done."""
        self._buffers.fill(inputs, leave=_FIXED)

    def run(self, inputs: PackedInputs) -> TorchStepResult:
        """Enqueue the step ``inputs``, which ``fill`` was given."""
        with self._device.active():
            self.repeated.run()
        if self._done is not None:
            self._done.record(self._device.stream)
        assert self._logits is not None
        indices = inputs.logits_indices
        requested = slice(0, len(indices)) if len(indices) == len(inputs.seq_lens) else indices.tolist()
        return TorchStepResult(
            self._device, self._best, self._logits, requested, self._chooser, self._done, self._tokens
        )

    def _work(self) -> None:
        self._buffers.upload(self._feeding)
        found = self._program.run(self._feeds)
        self._logits = found[LOGITS]
        if self._chooser is None:
            self._greedy.enqueue(found)
        else:
            self._chooser.enqueue(self._logits)


_FIXED = frozenset({QUERY_START_LOC, LOGITS_INDICES})
