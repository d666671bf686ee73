"""The tokens that go to the device and the logits that come back, each through pinned memory at fixed addresses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hybridge.artifact.names import CONTEXT_LENGTHS, INPUT_IDS, PAST_LENGTHS
from hybridge.runtime.engines.dense import StepInputs
from hybridge.runtime.engines.tensorrt.binding_plan import BindingPlan
from hybridge.runtime.engines.tensorrt.memory import Allocation, DeviceMemory, PinnedAllocation, aligned


class TokenStage:
    """Token ids and lengths of one step, packed so that one copy takes all of them to the device.

    A step of as many rows and tokens always finds them at the same addresses.
    """

    def __init__(self, memory: DeviceMemory, plan: BindingPlan) -> None:
        """Allocate for the largest step of ``plan``."""
        self._memory, self._plan = memory, plan
        self._layouts: dict[tuple[int, int], tuple[Mapping[str, int], int]] = {}
        nbytes = self._layout(plan.max_batch_size, plan.max_step_tokens)[1]
        self._device: Allocation = memory.allocate(nbytes, "the tokens of a step")
        self._host: PinnedAllocation = memory.allocate_pinned(nbytes, "the tokens of a step")

    def write(self, inputs: StepInputs) -> None:
        """Put ``inputs`` into pinned memory; the copy before it must be done."""
        batch, tokens = inputs.input_ids.shape
        offsets, _ = self._layout(batch, tokens)
        arrays = {
            INPUT_IDS: inputs.input_ids,
            CONTEXT_LENGTHS: inputs.context_lengths,
            PAST_LENGTHS: inputs.past_lengths,
        }
        for binding in self._plan.inputs:
            array, start = arrays[binding.name], offsets[binding.name]
            target = self._host.array[start : start + array.size * binding.dtype.itemsize]
            target.view(binding.dtype.numpy)[...] = array.reshape(-1)

    def upload(self, batch: int, tokens: int) -> None:
        """Enqueue the copy of a step of that shape."""
        self._memory.copy(self._device.address, self._host.address, self._layout(batch, tokens)[1])

    def addresses(self, batch: int, tokens: int) -> dict[str, int]:
        """The device address of each input in a step of that shape."""
        return {name: self._device.address + offset for name, offset in self._layout(batch, tokens)[0].items()}

    def free(self) -> None:
        """Give the memory back; calling it twice is allowed."""
        self._device.free()
        self._host.free()

    def _layout(self, batch: int, tokens: int) -> tuple[Mapping[str, int], int]:
        """Offset of every input, and the bytes of all."""
        if (batch, tokens) not in self._layouts:
            self._layouts[batch, tokens] = token_layout(self._plan, batch, tokens)
        return self._layouts[batch, tokens]


def token_layout(plan: BindingPlan, batch: int, tokens: int) -> tuple[Mapping[str, int], int]:
    """The offset of every input in a step of that shape, and the bytes of all."""
    offsets, end = {}, 0
    for binding in plan.inputs:
        offsets[binding.name] = end
        end += aligned(plan.nbytes(binding, batch, tokens))
    return offsets, end


class LogitsStage:
    """The logits of one step in device memory and, after ``download``, in pinned memory."""

    def __init__(self, memory: DeviceMemory, plan: BindingPlan) -> None:
        self._memory, self._plan = memory, plan
        self._device: Allocation | None = None
        self._host: PinnedAllocation | None = None

    @property
    def address(self) -> int:
        """The address to which the engine writes them."""
        assert self._device is not None
        return self._device.address

    def reserve(self, batch: int, tokens: int) -> None:
        """Room for a step of that shape. Growing waits for pending work, which uses the old addresses."""
        nbytes = self._plan.nbytes(self._plan.logits, batch, tokens)
        if self._host is not None and self._host.nbytes >= nbytes:  # allocated last: then both are there
            return
        if self._device is not None:
            self._memory.synchronize()
        self.free()
        self._device = self._memory.allocate(nbytes, "logits")
        self._host = self._memory.allocate_pinned(nbytes, "logits")

    def download(self, batch: int, tokens: int) -> None:
        """Enqueue the copy to the host."""
        assert self._device is not None and self._host is not None
        nbytes = self._plan.nbytes(self._plan.logits, batch, tokens)
        self._memory.copy(self._host.address, self._device.address, nbytes)

    def read(self, batch: int, tokens: int) -> np.ndarray:
        """The logits on the host, valid until the next download; float32 [batch, (tokens,) vocab]."""
        assert self._host is not None
        logits = self._plan.logits
        nbytes = self._plan.nbytes(logits, batch, tokens)
        return self._host.array[:nbytes].view(logits.dtype.numpy).reshape(self._plan.shape(logits, batch, tokens))

    def read_now(self, batch: int) -> np.ndarray:
        """The logits [batch, vocab] of a decode step that is done, copied from the device now."""
        self._memory.enter()
        self.download(batch, 1)
        self._memory.synchronize()
        return self.read(batch, 1).reshape(batch, -1)

    def free(self) -> None:
        """Give the memory back; calling it twice is allowed."""
        for allocation in (self._device, self._host):
            if allocation is not None:
                allocation.free()
        self._device = self._host = None
