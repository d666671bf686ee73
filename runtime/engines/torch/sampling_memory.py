"""Memory of the sampling kernels as torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from hybridge.runtime.engines.device_sampling import DeviceSampling, SamplingMemory, Table
from hybridge.runtime.engines.torch.device import TorchDevice, current_stream
from hybridge.trt_plugins.kernels.fused import sampling
from hybridge.trt_plugins.kernels.fused.sampling import SamplingProblem

TorchSampling = DeviceSampling[torch.Tensor]


def torch_sampling(device: TorchDevice, rows: int, vocab: int, lists: bool) -> TorchSampling:
    """Sampling on ``device``; arguments and errors as in ``DeviceSampling``."""
    return DeviceSampling(TorchSamplingMemory(device), rows, vocab, lists)


class TorchSamplingMemory(SamplingMemory[torch.Tensor]):
    """Everything is enqueued on the device's stream, or recorded in a graph."""

    def __init__(self, device: TorchDevice) -> None:
        self._device = device
        # By address.
        self._there: dict[int, torch.Tensor] = {}

    def table(self, nbytes: int) -> TorchTable:
        return TorchTable(self._device, nbytes)

    def wait_for_tables(self) -> None:
        if self._device.stream is not None:
            self._device.stream.wait_stream(self._device.copy_stream)

    def mapped(self, nbytes: int) -> np.ndarray:
        host, there = self._device.mapped(nbytes, dtype=torch.uint8)
        self._there[host.data_ptr()] = there
        return host.numpy()

    def prepared(
        self, problem: SamplingProblem, tables: Sequence[Table], results: Sequence[np.ndarray]
    ) -> Callable[[torch.Tensor], None]:
        kernels = self._device.kernels
        assert kernels is not None
        there = [table.there for table in tables if isinstance(table, TorchTable)]
        found = [self._there[array.ctypes.data] for array in results]

        def run(logits: torch.Tensor) -> None:
            assert logits.is_contiguous() and logits.dtype == torch.float32
            kernels.launch(problem, lambda traits: sampling.plan(problem, traits), (logits, *there), found)

        return run


class TorchTable(Table):
    """``there``: the device copy."""

    def __init__(self, device: TorchDevice, nbytes: int) -> None:
        self._device, self._host = device, device.pinned(nbytes, dtype=torch.uint8)
        self.here = self._host.numpy()
        self.there = torch.empty(nbytes, dtype=torch.uint8, device=device.torch)

    def upload(self, begin: int = 0, end: int | None = None) -> None:
        with self._device.active():
            self._copy(begin, end)

    def send(self, begin: int, end: int) -> None:
        if self._device.stream is None:
            self._copy(begin, end)
            return
        with current_stream(self._device.copy_stream):
            self._copy(begin, end)

    def _copy(self, begin: int, end: int | None) -> None:
        self.there[begin:end].copy_(self._host[begin:end], non_blocking=True)
