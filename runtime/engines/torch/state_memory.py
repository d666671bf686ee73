"""The state tensors of a batch, and a pool that reuses them."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Any

import torch

from hybridge.artifact.bindings import BATCH, MAX_SEQ, Binding
from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import past_key, past_value
from hybridge.runtime.engines.torch.cache_blocks import block_caches
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.tensors import torch_from_dtype

# Sets of states that are kept for reuse.
_MOST_UNUSED = 4


class StateMemory:
    """The states of ``batch`` rows with room for ``max_seq`` positions; steps change them in place.

    What is bound to these addresses: ``bound`` decode steps by context bucket, ``prompts`` steps of several tokens a
    row by shape, the latest last.
    """

    def __init__(self, specs: tuple[Binding, ...], device: TorchDevice, batch: int, max_seq: int) -> None:
        """Zeroed states; RuntimeError (on a GPU torch.OutOfMemoryError) when there is too little memory."""
        self.batch, self.max_seq = batch, max_seq
        self.bound: dict[int, Any] = {}
        self.prompts: OrderedDict[Any, Any] = OrderedDict()
        axes = {BATCH: batch, MAX_SEQ: max_seq}
        sizes = {spec.name: (spec.resolve(**axes), torch_from_dtype(spec.dtype)) for spec in specs}
        self.tensors: dict[str, torch.Tensor] = {}
        for k in range(len(specs)):
            names = [name for name in (past_key(k), past_value(k)) if name in sizes]
            if names:
                self.tensors |= zip(names, block_caches(device, len(names), *sizes[names[0]]), strict=True)
        for name, (shape, dtype) in sizes.items():
            if name not in self.tensors:
                self.tensors[name] = device.zeros(*shape, dtype=dtype)

    def clear(self) -> None:
        """Zero every state."""
        for tensor in self.tensors.values():
            tensor.zero_()


class StatePool:
    """Unused state memory, kept with what is bound to it for the next batch of the same size."""

    def __init__(self, specs: tuple[Binding, ...], device: TorchDevice) -> None:
        self._specs, self._device = specs, device
        self._free: list[StateMemory] = []
        # Filled by finalizers, which run at any point of the program: nothing else happens there.
        self._returned: deque[StateMemory] = deque()
        self._lock = threading.Lock()

    def lend(self, batch: int, max_seq: int) -> StateMemory:
        """Zeroed memory; EngineError when there is too little even after freeing the pool."""
        with self._lock, self._device.active():
            while self._returned:
                self._free.append(self._returned.popleft())
            del self._free[:-_MOST_UNUSED]
            found = next((memory for memory in self._free if (memory.batch, memory.max_seq) == (batch, max_seq)), None)
            if found is None:
                return self._allocate(batch, max_seq)
            self._free.remove(found)
            found.clear()
            return found

    def release(self, memory: StateMemory) -> None:
        """Take ``memory`` back; safe in a finalizer."""
        self._returned.append(memory)

    def close(self) -> None:
        """Free the pool; may be called twice."""
        with self._lock:
            self._free.clear()
            self._returned.clear()

    def _allocate(self, batch: int, max_seq: int) -> StateMemory:
        try:
            return StateMemory(self._specs, self._device, batch, max_seq)
        except RuntimeError:
            self._free.clear()
        torch.cuda.empty_cache()
        try:
            return StateMemory(self._specs, self._device, batch, max_seq)
        except RuntimeError as error:
            raise EngineError(
                f"expected memory for the states of {batch} rows of {max_seq} tokens, found too little: use a "
                "smaller batch, or shorter prompts"
            ) from error
