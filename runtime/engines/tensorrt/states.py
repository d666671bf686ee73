"""State buffers in device memory, as the cache managers see them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from hybridge.artifact.bindings import MAX_SEQ, Binding
from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.engines.dense import StateBuffer, StateSet
from hybridge.runtime.engines.tensorrt.binding_plan import BindingPlan
from hybridge.runtime.engines.tensorrt.memory import DeviceMemory
from hybridge.runtime.engines.tensorrt.state_memory import StateMemory, StatePool


class DeviceState(StateBuffer):
    """One state of a set. It follows the set's turns: the address is looked up at each use."""

    def __init__(self, owner: DeviceStateSet, spec: Binding, shape: tuple[int, ...]) -> None:
        self.spec, self.shape, self._owner = spec, shape, owner
        self._sequence_axis = spec.shape.index(MAX_SEQ) if MAX_SEQ in spec.shape else None
        self._row_bytes = int(np.prod(shape[1:])) * spec.dtype.itemsize

    def read_row(self, row: int, length: int | None = None) -> np.ndarray:
        shape = list(self.shape[1:])
        if length is not None and self._sequence_axis is not None:
            shape[self._sequence_axis - 1] = length
        value = np.empty(shape, self.spec.dtype.numpy)
        memory = self._owner.device_memory()
        self._copy(memory, value.ctypes.data, tuple(shape), self._address(row), self.shape[1:], tuple(shape))
        memory.synchronize()
        return value

    def write_row(self, row: int, value: np.ndarray) -> None:
        window = list(self.shape[1:])
        axis = None if self._sequence_axis is None else self._sequence_axis - 1
        if axis is not None and value.ndim == len(window):
            window[axis] = min(window[axis], value.shape[axis])
        if value.shape != tuple(window) or value.dtype != self.spec.dtype.numpy:
            raise RequestError(
                f"{self.spec.name}: expected a row of {self.spec.dtype.value}{window}, found {value.dtype}"
                f"{list(value.shape)}: use a state of the same artifact and engine"
            )
        source = np.ascontiguousarray(value)
        memory = self._owner.device_memory()
        self._copy(memory, self._address(row), self.shape[1:], source.ctypes.data, value.shape, value.shape)
        memory.synchronize()

    def copy_row(self, source: int, target: int) -> None:
        self._owner.device_memory().copy(self._address(target), self._address(source), self._row_bytes)

    def take_row(self, target: int, other: StateBuffer, source: int, length: int) -> None:
        if not isinstance(other, DeviceState):
            super().take_row(target, other, source, length)
            return
        window = list(self.shape[1:])
        if self._sequence_axis is not None:
            window[self._sequence_axis - 1] = length
        addresses = self._address(target), other._address(source)
        memory, shape = self._owner.device_memory(), self.shape[1:]
        self._copy(memory, addresses[0], shape, addresses[1], shape, tuple(window))

    def zero_rows(self, rows: list[int] | None = None, length: int | None = None) -> None:
        # The positions of a row are not contiguous: zeroing all of them is one call.
        memory = self._owner.device_memory()
        if rows is None:
            memory.zero(self._address(0), self.shape[0] * self._row_bytes)
        for row in rows or ():
            memory.zero(self._address(row), self._row_bytes)

    def _address(self, row: int) -> int:
        if not 0 <= row < self.shape[0]:
            raise IndexError(f"expected a row from 0 to {self.shape[0] - 1}, found {row}")
        return self._owner.memory.address(self.spec.name) + row * self._row_bytes

    def _copy(
        self,
        memory: DeviceMemory,
        target: int,
        target_shape: tuple[int, ...],
        source: int,
        source_shape: tuple[int, ...],
        window: tuple[int, ...],
    ) -> None:
        """Copy the first ``window`` of rows that differ at most along the sequence axis."""
        axis = 0 if self._sequence_axis is None else self._sequence_axis - 1
        runs = int(np.prod(window[:axis]))
        inner = int(np.prod(window[axis + 1 :])) * self.spec.dtype.itemsize
        width = window[axis] * inner
        if width and runs:
            memory.copy_rows(target, target_shape[axis] * inner, source, source_shape[axis] * inner, width, runs)


class DeviceStateSet(StateSet):
    """The states of ``batch`` rows in memory that returns to the pool when the set is no longer referenced."""

    def __init__(self, plan: BindingPlan, device: DeviceMemory, pool: StatePool, batch: int) -> None:
        """Zeroed states; OutOfDeviceMemory when there is too little memory."""
        self.batch = batch
        self._device: DeviceMemory | None = device
        self._max_seq = plan.max_seq_len
        self.memory: StateMemory = pool.lend(batch)
        self._finalizer = weakref.finalize(self, pool.release, self.memory)
        self._finalizer.atexit = False
        self._specs = tuple(state.spec for state in plan.states)
        self._shapes = {spec.name: plan.shape(spec, batch) for spec in self._specs}

    @property
    def buffers(self) -> Mapping[str, DeviceState]:
        return MappingProxyType({spec.name: DeviceState(self, spec, self._shapes[spec.name]) for spec in self._specs})

    @property
    def max_seq(self) -> int:
        return self._max_seq

    def reserve(self, max_seq: int) -> None:
        """The caches have the engine's length from the start: only checks that ``max_seq`` fits."""
        if max_seq > self._max_seq:
            raise too_long(max_seq, self._max_seq)

    def device_memory(self) -> DeviceMemory:
        """The memory, with the GPU current in this thread; EngineError when the engine has been closed."""
        if self._device is None:
            raise EngineError("expected an open engine, found one that was closed: these states are gone")
        self._device.enter()
        return self._device

    def invalidate(self) -> None:
        """Forget the memory, which the engine is about to free."""
        self._device = None


def too_long(found: int, limit: int) -> RequestError:
    """The error for ``found`` tokens in a row of an engine with room for ``limit``."""
    return RequestError(
        f"expected at most {limit} tokens in one row, found {found}: shorten the prompt, or build the engine with a "
        "larger `max_seq_len`"
    )
