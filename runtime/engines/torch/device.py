"""The device of the engine: a CUDA GPU with its own stream, or the CPU."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
import torch

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.torch.kernels import KernelRunner

# Tokens of a row in one step. On a CPU the scores of attention grow with tokens times context and nothing is won by
# more; on a GPU a step must be large to be bound by its matrix products.
_CPU_STEP_TOKENS, _GPU_STEP_TOKENS = 512, 4096
# Parts of the work that may run at the same time: more than two won nothing on an H200, and cost the host more.
MOST_PARTS = 2


class TorchDevice:
    """One device; ``kernels`` launches CUDA kernels there, None on the CPU."""

    def __init__(self, name: str | None = None) -> None:
        """``name``: "cuda" or "cpu", None for the first of them that is there; EngineError when it is not."""
        if name not in (None, "cuda", "cpu"):
            raise EngineError(f"device: expected cuda or cpu, found {name!r}")
        available = torch.cuda.is_available()
        if name == "cuda" and not available:
            raise EngineError("device: expected a CUDA GPU that torch can use, found none: use the device cpu")
        self.is_gpu = available if name is None else name == "cuda"
        self.torch = torch.device("cuda", torch.cuda.current_device()) if self.is_gpu else torch.device("cpu")
        self.kernels: KernelRunner | None = None
        self.stream: torch.cuda.Stream | None = None
        self._graphs: list[tuple[torch.cuda.CUDAGraph, torch.Tensor]] = []
        if self.is_gpu:
            self.kernels, self.stream = KernelRunner(), torch.cuda.Stream()

    @cached_property
    def graph_pool(self) -> Any:
        """The memory of intermediate values, which the graphs of all steps share, as one of them runs at a time; None
        on a CPU."""
        return self._made_pool()

    @cached_property
    def advance_pool(self) -> Any:
        """The memory pool of graphs that advance states, which run while the logits of a step may still be read."""
        return self._made_pool()

    @cached_property
    def side_streams(self) -> tuple[torch.cuda.Stream, ...]:
        """Streams for parts of the work that may run at the same time; none on a CPU."""
        return tuple(torch.cuda.Stream() for _ in range(MOST_PARTS)) if self.is_gpu else ()

    @cached_property
    def copy_stream(self) -> torch.cuda.Stream:
        """A stream for copies to the device that pass by the work of a running step."""
        return torch.cuda.Stream()

    def _made_pool(self) -> Any:
        """A new pool. torch gives it back with its last graph, and lets no other one have it then: a graph of next to
        nothing is kept."""
        if self.stream is None:
            return None
        handle, graph = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
        with self.active():
            number = torch.zeros(1, device=self.torch)
            self.synchronize()
            graph.capture_begin(pool=handle, capture_error_mode="thread_local")
            number.zero_()
            graph.capture_end()
        self._graphs.append((graph, number))
        return handle

    @property
    def step_tokens(self) -> int:
        """The most tokens of a row that one step should have."""
        return _GPU_STEP_TOKENS if self.is_gpu else _CPU_STEP_TOKENS

    def active(self) -> AbstractContextManager[object]:
        """Work inside goes to this device's stream."""
        return contextlib.nullcontext() if self.stream is None else current_stream(self.stream)

    @property
    def is_idle(self) -> bool:
        """Whether all work on the stream is done."""
        return self.stream is None or self.stream.query()

    def synchronize(self) -> None:
        """Wait for the stream; EngineError when work on it failed."""
        if self.stream is not None:
            self.wait_for(self.stream)

    def mark(self) -> torch.cuda.Event | None:
        """An event after what is enqueued now; None on a CPU, where nothing is."""
        return None if self.stream is None else self.stream.record_event()

    @staticmethod
    def wait_for(work: torch.cuda.Stream | torch.cuda.Event) -> None:
        """Wait for ``work``; errors as in ``synchronize``."""
        try:
            work.synchronize()
        except RuntimeError as error:
            raise EngineError(f"running the step: the GPU reports {' '.join(str(error).split())}") from error

    def zeros(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Cleared memory. It is cleared in this device's stream, as another one might do it after the first use."""
        with self.active():
            return torch.zeros(shape, dtype=dtype, device=self.torch)

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory that the GPU copies to and from without staging (plain memory on the CPU)."""
        return torch.zeros(shape, dtype=dtype, pin_memory=self.is_gpu)

    def mapped(self, *shape: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cleared pinned host memory, and the same memory as kernels on the GPU read and write it over the bus."""
        host = self.pinned(*shape, dtype=dtype)
        if not self.is_gpu:
            return host, host
        return host, torch.as_tensor(_SharedMemory(host.numpy()), device=self.torch)


class current_stream:
    """The stream is torch's current one inside. torch.cuda.stream does the same for any device, and takes longer."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._before = torch.cuda.current_stream()
        torch.cuda.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_stream(self._before)


class _SharedMemory:
    """Pinned host memory by the protocol for device memory: a GPU's addresses of it are the host's."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "version": 3,
        }
