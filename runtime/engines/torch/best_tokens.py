"""The most likely token of each row of logits: one kernel on a GPU, else torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from hybridge.artifact.names import LOGITS
from hybridge.runtime.engines.device_sampling import ChosenTokens
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.kernels import alignment_of
from hybridge.runtime.engines.torch.ops.optional_kernel import OptionalKernel
from hybridge.trt_plugins.kernels.fused import most_likely
from hybridge.trt_plugins.kernels.fused.most_likely import MostLikely

# Among what a program gives: the most likely tokens, of one that has needed them itself.
BEST = "best"
_ALIGNMENT = 16


def best_in(found: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The most likely token of each row of logits among what a program has given; -1 as in ``best_of``."""
    return found[BEST] if BEST in found else best_of(found[LOGITS])


def best_of(logits: torch.Tensor) -> torch.Tensor:
    """The most likely token of each row of ``logits`` [m, vocab], the first of equals; -1 where it is not finite."""
    best = logits.argmax(1, keepdim=True)
    return torch.where(logits.gather(1, best).isfinite(), best, -1)[:, 0]


class BestTokens:
    """``array`` [rows] int64, in host memory: the tokens of the step that ran last, once it is done."""

    def __init__(self, device: TorchDevice, rows: int) -> None:
        self._host, self._mapped = device.mapped(rows, dtype=torch.int64)
        self.array: np.ndarray = self._host.numpy()
        # A step that follows reads them here, which is faster than over the bus.
        self._there = device.zeros(rows, dtype=torch.int64) if device.is_gpu else self._host
        kernels = device.kernels if device.is_gpu else None
        self._kernel = None if kernels is None else OptionalKernel(kernels, most_likely.plan)

    @property
    def tokens(self) -> ChosenTokens:
        """The same for kernels."""
        return ChosenTokens(self._there.data_ptr(), self._there.itemsize)

    def enqueue(self, found: Mapping[str, torch.Tensor]) -> None:
        """Enqueue the choice among what a program has ``found``."""
        if BEST not in found and self._launched(found[LOGITS]):
            return
        self._there.copy_(best_in(found))
        if self._host is not self._there:
            self._host.copy_(self._there, non_blocking=True)

    def _launched(self, logits: torch.Tensor) -> bool:
        """Whether the kernel runs these logits, and has been enqueued."""
        if self._kernel is None or logits.dtype != torch.float32 or not logits.is_contiguous():
            return False
        if alignment_of(logits) != _ALIGNMENT:
            return False
        problem = self._kernel.problem(lambda: MostLikely(*logits.shape))
        return problem is not None and self._kernel.launch(problem, (logits,), (self._mapped, self._there))
