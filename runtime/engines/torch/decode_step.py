"""Decoding one token per row: on a GPU run directly once, then recorded in a CUDA graph and replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from hybridge.runtime.engines.torch.cache_blocks import CacheBlocks
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.graph import LENGTHS, RESULT
from hybridge.runtime.engines.torch.lengths import StepLengths
from hybridge.runtime.engines.torch.program import Program
from hybridge.runtime.engines.torch.recording import RepeatedWork
from hybridge.runtime.engines.torch.state_memory import StateMemory
from hybridge.runtime.engines.torch.step_buffers import StepBuffers
from hybridge.runtime.engines.torch.step_memory import memory_for


class DecodeStep:
    """The decode step of one state memory up to one bucket of positions.

    The first run is a step like any other, the second is recorded, which changes no state, and launched at once. From
    then on a step is one launch: tokens to the device and all kernels, the last of which writes logits to host memory.
    """

    def __init__(
        self,
        device: TorchDevice,
        program: Program,
        memory: StateMemory,
        bucket: int,
        finish: Callable[[Mapping[str, torch.Tensor]], torch.Tensor],
    ) -> None:
        """``finish`` takes over what the program returns: it advances the states and gives the logits."""
        self._device, self._program, self._finish, self._rows = device, program, finish, memory.batch
        self.buffers = StepBuffers(device, memory.batch, memory.max_seq)
        blocks = CacheBlocks.of(device, memory.batch, memory.max_seq, bucket, self.buffers.lengths, self.buffers.slots)
        lengths = StepLengths(1, (1,) * memory.batch, (0,) * memory.batch, bucket, blocks)
        self._feeds = {**self.buffers.tensors, **memory.tensors, LENGTHS: lengths, RESULT: None}
        self._logits: torch.Tensor | None = None
        self.repeated = RepeatedWork(device, self._work)

    @property
    def is_replayed(self) -> bool:
        """Whether the next run launches an existing graph."""
        return self.repeated.is_replayed

    def run(self) -> np.ndarray:
        """One step of what is in ``buffers``: logits [batch, (1,) vocab] float32, valid until the next run.

        EngineError when the GPU refuses or fails it.
        """
        if self.repeated.is_replayed:
            self.repeated.run()
        else:
            with self._device.active(), memory_for(self._rows, 1):
                self.repeated.run()
        self._device.synchronize()
        assert self._logits is not None
        return self._logits.numpy()

    def _work(self) -> None:
        self.buffers.upload()
        logits = self._finish(self._program.run(self._feeds))
        if self._logits is None:
            # From now on the head writes there itself, if it can.
            self._logits, self._feeds[RESULT] = self._device.mapped(*logits.shape, dtype=torch.float32)
        if logits.data_ptr() != self._logits.data_ptr():
            self._logits.copy_(logits, non_blocking=True)
