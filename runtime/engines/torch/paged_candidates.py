"""Rows of a token and its candidates on a GPU, recorded in one CUDA graph for each size of step."""

from __future__ import annotations

import numpy as np
import torch

from artifact.names import LOGITS, QUERY_START_LOC, SEQ_LENS
from runtime.engines.paged import PackedInputs
from runtime.engines.torch.device import TorchDevice
from runtime.engines.torch.packed_buffers import PackedBuffers, StepSize
from runtime.engines.torch.paged_decode import padded_blocks, padded_rows
from runtime.engines.torch.paged_pools import TorchPools
from runtime.engines.torch.paged_result import TorchStepResult, best_of
from runtime.engines.torch.program import Program
from runtime.engines.torch.recording import RepeatedWork
from runtime.engines.torch.step_rows import StepRows

# Tokens of a recorded step are a multiple of this, or all that its rows may have.
_TOKENS = 8


def candidate_size(inputs: PackedInputs, candidates: int, most_rows: int, block_size: int) -> StepSize:
    """The size that a step is padded to whose rows have at most ``candidates`` tokens behind their own."""
    rows = padded_rows(len(inputs.seq_lens), most_rows)
    tokens = min(rows * (1 + candidates), -(-len(inputs.input_ids) // _TOKENS) * _TOKENS)
    return StepSize(tokens, rows, padded_blocks(inputs.block_table.shape[1], block_size), tokens)


class PagedCandidateStep:
    """A step of ``size``: how many tokens each row has is in device memory, so that one graph serves all steps.

    Further rows have no tokens, further tokens belong to no row, and touch nothing.
    """

    def __init__(
        self, device: TorchDevice, program: Program, pools: TorchPools, size: StepSize, candidates: int
    ) -> None:
        self._device, self._program, self._longest = device, program, 1 + candidates
        self._buffers = PackedBuffers(device, size, candidates)
        self._feeds = {**self._buffers.tensors, **pools.tensors}
        self._best = device.pinned(size.logits, dtype=torch.int64)
        self._logits: torch.Tensor | None = None
        self.repeated = RepeatedWork(device, self._work)

    def launch(self, inputs: PackedInputs) -> TorchStepResult:
        """Enqueue the step ``inputs``, which is no larger; the stream before it has to be done."""
        self._buffers.fill(inputs)
        with self._device.active():
            self.repeated.run()
        assert self._logits is not None
        return TorchStepResult(self._device, self._best, self._logits, slice(0, len(inputs.logits_indices)))

    def _work(self) -> None:
        self._buffers.upload()
        self._logits = self._program.run({**self._feeds, QUERY_START_LOC: self._rows()})[LOGITS]
        self._best.copy_(best_of(self._logits), non_blocking=True)

    def _rows(self) -> StepRows:
        bounds = self._buffers.tensors[QUERY_START_LOC]
        if self.repeated.is_recording:
            return StepRows(bounds, None, None, 0, self._longest)
        arrays = self._buffers.arrays
        counts, lengths = np.diff(arrays[QUERY_START_LOC]).tolist(), arrays[SEQ_LENS].tolist()
        return StepRows(bounds, tuple(counts), tuple(lengths), 0, self._longest)
