"""The tokens and lengths of a decode step, in pinned host memory and on the device."""

from __future__ import annotations

import numpy as np
import torch

from artifact.names import CONTEXT_LENGTHS, INPUT_IDS, PAST_LENGTHS
from runtime.engines.torch.device import TorchDevice

# (input, NumPy type, torch type): one after the other in one buffer, so that one copy takes all of them.
_PARTS = (
    (INPUT_IDS, np.dtype(np.int64), torch.int64),
    (CONTEXT_LENGTHS, np.dtype(np.int32), torch.int32),
    (PAST_LENGTHS, np.dtype(np.int32), torch.int32),
)


class StepBuffers:
    """ids [batch] int64, context and past [batch] int32 in host memory; ``tensors`` are the program's inputs."""

    def __init__(self, device: TorchDevice, batch: int) -> None:
        nbytes = batch * sum(dtype.itemsize for _, dtype, _ in _PARTS)
        self._host = device.pinned(nbytes, dtype=torch.uint8)
        self._there = device.zeros(nbytes, dtype=torch.uint8) if device.is_gpu else self._host
        views, self.tensors, start = [], {}, 0
        for name, dtype, kind in _PARTS:
            part = slice(start, start + batch * dtype.itemsize)
            views.append(self._host.numpy()[part].view(dtype))
            self.tensors[name] = self._there[part].view(kind)
            start = part.stop
        self.ids, self.context, self.past = views
        self.tensors[INPUT_IDS] = self.tensors[INPUT_IDS][:, None]

    def upload(self) -> None:
        """Enqueue the copy to the device."""
        if self._there is not self._host:
            self._there.copy_(self._host, non_blocking=True)
