"""State buffers in torch tensors, as the cache managers see them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch

from hybridge.artifact.bindings import MAX_SEQ, Binding
from hybridge.artifact.errors import RequestError
from hybridge.runtime.engines.dense import StateBuffer, StateSet
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.state_memory import StateMemory, StatePool
from hybridge.runtime.engines.torch.tensors import array_from_tensor, tensor_from_array


class TorchState(StateBuffer):
    """One state of a set. The tensor is looked up at each use: it is another one after the caches have grown."""

    def __init__(self, owner: TorchStateSet, spec: Binding) -> None:
        self.spec, self._owner = spec, owner
        self._axis = spec.shape.index(MAX_SEQ) - 1 if MAX_SEQ in spec.shape else None

    @property
    def tensor(self) -> torch.Tensor:
        """The state of all rows on the device."""
        return self._owner.memory.tensors[self.spec.name]

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(self.tensor.shape)

    def read_row(self, row: int, length: int | None = None) -> np.ndarray:
        with self._owner.device.active():
            return array_from_tensor(self._window(row, length), self.spec.dtype)

    def write_row(self, row: int, value: np.ndarray) -> None:
        length = None
        if self._axis is not None and value.ndim == len(self.shape) - 1:
            length = min(value.shape[self._axis], self.shape[self._axis + 1])
        with self._owner.device.active():
            target = self._window(row, length)
            if value.shape != tuple(target.shape) or value.dtype != self.spec.dtype.numpy:
                raise RequestError(
                    f"{self.spec.name}: expected a row of {self.spec.dtype.value}{list(target.shape)}, found "
                    f"{value.dtype}{list(value.shape)}: use a state of the same artifact and engine"
                )
            target.copy_(tensor_from_array(value, self.spec.dtype))

    def copy_row(self, source: int, target: int) -> None:
        with self._owner.device.active():
            self._window(target, None).copy_(self._window(source, None))

    def take_row(self, target: int, other: StateBuffer, source: int, length: int) -> None:
        if not isinstance(other, TorchState):
            super().take_row(target, other, source, length)
            return
        with self._owner.device.active():
            self._window(target, length).copy_(other._window(source, length))

    def zero_rows(self, rows: list[int] | None = None, length: int | None = None) -> None:
        with self._owner.device.active():
            for row in range(self.shape[0]) if rows is None else rows:
                self._window(row, length).zero_()

    def _window(self, row: int, length: int | None) -> torch.Tensor:
        """One row; of a state with a max_seq axis the first ``length`` positions."""
        tensor = self.tensor[row]
        return tensor if length is None or self._axis is None else tensor.narrow(self._axis, 0, length)


class TorchStateSet(StateSet):
    """The states of ``batch`` rows in memory that returns to the pool when the set is no longer referenced."""

    def __init__(
        self, specs: tuple[Binding, ...], device: TorchDevice, pool: StatePool, batch: int, max_seq: int, limit: int
    ) -> None:
        """Zeroed states; RequestError when ``max_seq`` exceeds ``limit``, EngineError without enough memory."""
        self.batch, self.device, self._pool, self._limit = batch, device, pool, limit
        self._specs = specs
        # A model without attention has no cache to size: its states hold any number of tokens.
        has_caches = any(MAX_SEQ in spec.shape for spec in specs)
        self._lend(max(1, max_seq) if has_caches else limit)

    @property
    def buffers(self) -> Mapping[str, TorchState]:
        # Created each time: a set with a reference to its owner would outlive its last user.
        return MappingProxyType({spec.name: TorchState(self, spec) for spec in self._specs})

    @property
    def max_seq(self) -> int:
        return self.memory.max_seq

    def reserve(self, max_seq: int) -> None:
        if max_seq <= self.max_seq:
            return
        old, release = self.memory, self._release
        self._lend(max_seq, min(self._limit, 2 * old.max_seq))
        with self.device.active():
            for name, tensor in old.tensors.items():
                target = self.memory.tensors[name]
                target[tuple(slice(size) for size in tensor.shape)].copy_(tensor)
        release()

    def _lend(self, needed: int, requested: int = 0) -> None:
        if needed > self._limit:
            raise RequestError(
                f"expected at most {self._limit} tokens in one row, found {needed}: shorten the prompt, or export "
                "with a larger `max_seq_len`"
            )
        self.memory: StateMemory = self._pool.lend(self.batch, max(needed, requested))
        self._release = weakref.finalize(self, self._pool.release, self.memory)
        self._release.atexit = False
