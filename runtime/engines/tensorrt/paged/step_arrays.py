"""The arrays of a packed step in pinned memory, which one copy takes to the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hybridge.artifact.bindings import Binding
from hybridge.artifact.names import (
    BLOCK_TABLE,
    NUM_ACCEPTED_TOKENS,
    QUERY_START_LOC,
    SLOT_MAPPING,
    STATE_INDICES,
)
from hybridge.runtime.engines.tensorrt.memory import DeviceMemory, aligned
from hybridge.runtime.engines.tensorrt.paged.step_size import StepSize
from hybridge.runtime.engines.tensorrt.staging import Staging

# What fills an array beyond the step's own entries, 0 where it is not here.
_FILL = {BLOCK_TABLE: -1, SLOT_MAPPING: -1, STATE_INDICES: -1, NUM_ACCEPTED_TOKENS: 1}


class StepArrays:
    """Memory for the inputs of one step at a time, up to a largest size."""

    def __init__(self, memory: DeviceMemory, bindings: Sequence[Binding], largest: Sequence[StepSize]) -> None:
        """Room for ``bindings`` in every size of ``largest``; OutOfDeviceMemory when there is too little memory."""
        self._memory, self._bindings = memory, tuple(bindings)
        nbytes = max(layout(self._bindings, size)[1] for size in largest)
        self._staging = Staging(memory, nbytes, "the inputs of a step")

    def shaped(self, size: StepSize) -> ShapedArrays:
        """The arrays of a step of ``size``; they share the memory of those of every other size."""
        offsets, nbytes = layout(self._bindings, size)
        axes = size.axes
        shapes = {b.name: b.resolve(**axes) for b in self._bindings}
        arrays = {}
        for binding in self._bindings:
            start, shape = offsets[binding.name], shapes[binding.name]
            part = self._staging.array[start : start + math.prod(shape) * binding.dtype.itemsize]
            arrays[binding.name] = part.view(binding.dtype.numpy).reshape(shape)
        addresses = {name: self._staging.address + offset for name, offset in offsets.items()}
        copy = (self._staging.address, self._staging.host, nbytes)
        return ShapedArrays(self._memory, size, arrays, addresses, copy)

    def free(self) -> None:
        """Give the memory back; calling it twice is allowed."""
        self._staging.free()


class ShapedArrays:
    """``arrays`` in pinned memory and the ``addresses`` of their copies on the device, by input name."""

    def __init__(
        self,
        memory: DeviceMemory,
        size: StepSize,
        arrays: Mapping[str, np.ndarray],
        addresses: Mapping[str, int],
        copy: tuple[int, int, int],
    ) -> None:
        """``copy``: the device's address, the host's, and bytes."""
        self.size, self.arrays, self.addresses = size, arrays, addresses
        self.shapes = {name: array.shape for name, array in arrays.items()}
        self._memory, self._copy = memory, copy

    def fill(self, given: Mapping[str, np.ndarray]) -> None:
        """Write a step, which has at most as much of everything; the copy before it must be done.

        Further rows are padding. In a step of as many tokens as rows each has one token, else the last row has all
        further tokens. Further logits are those of the first token.
        """
        tokens, rows = self.size.tokens, self.size.rows
        for name, array in self.arrays.items():
            source = given[name]
            if name == QUERY_START_LOC and tokens == rows:
                array[...] = np.arange(rows + 1)
            elif name == QUERY_START_LOC:
                array[: len(source)], array[len(source) :], array[-1] = source, source[-1], tokens
            elif array.ndim == 1:
                array[: len(source)], array[len(source) :] = source, _FILL.get(name, 0)
            else:
                columns = min(array.shape[1], source.shape[1])
                array[: len(source), :columns] = source[:, :columns]
                array[: len(source), columns:] = array[len(source) :] = -1

    def upload(self) -> None:
        """Enqueue the copy to the device."""
        self._memory.copy(*self._copy)


def layout(bindings: Sequence[Binding], size: StepSize) -> tuple[Mapping[str, int], int]:
    """The offset of every array in the inputs of a step of ``size``, and the bytes of all."""
    offsets, end, axes = {}, 0, size.axes
    for binding in bindings:
        offsets[binding.name] = end
        end += aligned(math.prod(binding.resolve(**axes)) * binding.dtype.itemsize)
    return offsets, end
