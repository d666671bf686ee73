"""The steps in which a prediction head continues from its own hidden states, all in one CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hybridge.artifact.names import INPUT_IDS, LOGITS_INDICES, QUERY_START_LOC, SEQ_LENS
from hybridge.runtime.engines.mtp_head import HeadInputs
from hybridge.runtime.engines.torch.best_tokens import BEST
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.hidden_states import OWN_SLOTS, HeadProgram
from hybridge.runtime.engines.torch.packed_buffers import PackedBuffers, StepSize
from hybridge.runtime.engines.torch.paged_pools import TorchPools
from hybridge.runtime.engines.torch.recording import RepeatedWork
from hybridge.runtime.engines.torch.step_rows import StepRows

_FIXED = frozenset({INPUT_IDS, QUERY_START_LOC, LOGITS_INDICES})


class AutoregressiveSteps:
    """As many steps as ``rows`` has numbers, with that many rows of one token each, that see ``blocks`` blocks.

    Tokens and hidden states of each are those that the step before has left on the device, so that the host does not
    wait for one of them. Inactive rows touch nothing there.
    """

    def __init__(
        self, device: TorchDevice, program: HeadProgram, pools: TorchPools, rows: Sequence[int], blocks: int
    ) -> None:
        self._device, self._program, self._pools = device, program, pools
        sizes = [StepSize(count, count, blocks, count) for count in rows]
        self._buffers = [PackedBuffers(device, size, extra=program.extra) for size in sizes]
        for buffers, count in zip(self._buffers, rows, strict=True):
            bounds = np.arange(count + 1)
            buffers.arrays[QUERY_START_LOC][...], buffers.arrays[LOGITS_INDICES][...] = bounds, bounds[:-1]
        self._best = device.pinned(sum(rows), dtype=torch.int64)
        self._parts = torch.split(self._best, list(rows))
        self._taking_part: list[list[int]] = []
        self.repeated = RepeatedWork(device, self._work)

    def launch(self, inputs: HeadInputs) -> None:
        """Enqueue what follows the step ``inputs``; the last run of this must be done."""
        self._taking_part.clear()
        for index, buffers in enumerate(self._buffers):
            rows, step = inputs.own_step(index, self._pools.sizes.block_size)
            buffers.fill(step, leave=_FIXED)
            self._taking_part.append(rows.tolist())
        with self._device.active():
            self.repeated.run()

    def add_tokens(self, found: Sequence[list[int | None]]) -> None:
        """Append the results to the tokens of each row, once the device is done. None: not finite."""
        for rows, best in zip(self._taking_part, self._parts, strict=True):
            for row, token in zip(rows, best.tolist(), strict=False):
                found[row].append(token if token >= 0 else None)

    def _work(self) -> None:
        for buffers in self._buffers:
            buffers.upload()
        for buffers, best in zip(self._buffers, self._parts, strict=True):
            given = buffers.tensors
            rows = {QUERY_START_LOC: self._rows(buffers), INPUT_IDS: self._program.last_tokens(given[OWN_SLOTS])}
            found = self._program.run({**given, **self._pools.tensors, **rows})
            best.copy_(found[BEST], non_blocking=True)

    def _rows(self, buffers: PackedBuffers) -> StepRows:
        lengths = buffers.arrays[SEQ_LENS]
        known = None if self._device.is_gpu else tuple(lengths.tolist())
        return StepRows(buffers.tensors[QUERY_START_LOC], (1,) * len(lengths), known, len(lengths), 1)
