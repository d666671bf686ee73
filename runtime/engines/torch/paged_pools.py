"""The pools of a paged engine as torch tensors, changed where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch

from hybridge.artifact.bindings import BLOCK_SIZE, NUM_BLOCKS, NUM_SLOTS, Binding
from hybridge.artifact.errors import EngineError
from hybridge.artifact.kv_dtypes import filled_with
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.packed_state import PackedState
from hybridge.runtime.engines.pool_arrays import pool_array
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.packed_slots import PackedSlots
from hybridge.runtime.engines.torch.tensors import array_from_tensor, tensor_from_array, torch_from_dtype

_NONE: Mapping[str, int] = MappingProxyType({})
# Up to so many blocks or slots are copied one by one.
_FEW = 4


class TorchCopy(HostCopy):
    """Blocks [parts, count, ...] and slots [count, ...] by pool name, in host memory."""

    def __init__(self, blocks: int, slots: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self.blocks, self.slots, self.tensors = blocks, slots, tensors

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


class TorchPools:
    """One tensor for each pool of ``specs``, in the layout of its declaration.

    A KV pool has one block more than ``sizes`` says, and a pool of states one slot more, the last one: where an
    operator runs in torch, what has no place goes there.
    """

    def __init__(
        self, specs: Sequence[Binding], sizes: PoolSizes, device: TorchDevice, snapshots: Mapping[str, int] = _NONE
    ) -> None:
        """``snapshots``: by pool, slots for states after draft tokens, behind the others. EngineError: short memory."""
        self.sizes, self._device = sizes, device
        self._specs = {spec.name: spec for spec in specs}
        axes = {NUM_BLOCKS: sizes.num_blocks + 1, BLOCK_SIZE: sizes.block_size}
        try:
            with device.active():
                self._tensors = {
                    spec.name: torch.empty(
                        spec.resolve(**axes, **{NUM_SLOTS: sizes.num_slots + snapshots.get(spec.name, 0) + 1}),
                        dtype=torch_from_dtype(spec.dtype),
                        device=device.torch,
                    )
                    for spec in specs
                }
                self.packed = PackedSlots(specs, sizes, device.torch)
        except RuntimeError as error:
            raise EngineError(
                f"expected memory for {sizes.num_blocks} blocks and {sizes.num_slots} slots, found too little: "
                "lower `memory_bytes` or `max_seq_len`"
            ) from error

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The pools by graph input name."""
        return MappingProxyType(self._tensors)

    def read(self, name: str) -> np.ndarray:
        """A copy of one pool, without the spare block or slot."""
        tensor = self._tensors[name]
        with self._device.active():
            grows, sizes = self._specs[name].grows, self.sizes
            owned = tensor[:, : sizes.num_blocks] if grows else tensor[: sizes.num_slots]
            return array_from_tensor(owned, self._specs[name].dtype)

    def fill(self, value: float) -> None:
        """Overwrite all pools with ``value``."""
        with self._device.active():
            for name, tensor in self._tensors.items():
                tensor.fill_(filled_with(value, self._specs[name].dtype))

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._copy(self._kv(), 1, sources, targets)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._copy(self._states(), 0, sources, targets)

    def zero_slots(self, slots: Sequence[int]) -> None:
        with self._device.active():
            for pool in self._states():
                for slot in slots:
                    pool[slot].zero_()

    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> TorchCopy:
        """EngineError when there is no memory for the copy."""
        try:
            with self._device.active():
                taken = {
                    name: pool.index_select(axis, self._index(chosen)).cpu()
                    for name, pool, axis, chosen in self._parts(blocks, slots)
                }
        except (MemoryError, RuntimeError) as error:
            raise EngineError(
                f"expected memory for a copy of {len(blocks)} blocks and {len(slots)} slots, found too little: "
                "hold fewer sequences at once"
            ) from error
        return TorchCopy(len(blocks), len(slots), taken)

    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """EngineError when the copy is of another engine or of another size."""
        if not isinstance(copy, TorchCopy) or (copy.blocks, copy.slots) != (len(blocks), len(slots)):
            raise EngineError(
                f"expected a copy of {len(blocks)} blocks and {len(slots)} slots by this engine, found "
                f"{type(copy).__name__} of {copy.blocks} and {copy.slots}: pass as many as were swapped out"
            )
        with self._device.active():
            for name, pool, axis, chosen in self._parts(blocks, slots):
                pool.index_copy_(axis, self._index(chosen), copy.tensors[name].to(pool.device))

    def arrays_from_copy(self, copy: HostCopy) -> dict[str, np.ndarray]:
        """The contents of ``copy``; EngineError when another engine made it."""
        if not isinstance(copy, TorchCopy):
            raise EngineError(f"expected a copy by this engine, found {type(copy).__name__}: take it with swap_out")
        return {name: array_from_tensor(tensor, self._specs[name].dtype) for name, tensor in copy.tensors.items()}

    def copy_from_arrays(self, arrays: Mapping[str, np.ndarray], blocks: int, slots: int) -> TorchCopy:
        """The inverse; EngineError when an array is missing, of another shape or beyond the pool's type."""
        axes = {NUM_BLOCKS: blocks, BLOCK_SIZE: self.sizes.block_size, NUM_SLOTS: slots}
        stored = {}
        for name, spec in self._specs.items():
            shape, found = spec.resolve(**axes), None if name not in arrays else arrays[name].shape
            if found != shape:
                raise EngineError(f"{name}: expected an array {list(shape)}, found {found}: use one of the same model")
            stored[name] = tensor_from_array(pool_array(name, arrays[name], spec.dtype), spec.dtype)
        return TorchCopy(blocks, slots, stored)

    def pack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._move(self.packed.pack, sources, targets)

    def unpack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._move(self.packed.unpack, sources, targets)

    def packed_out(self, slot: int) -> PackedState:
        """EngineError when there is no memory for the copy."""
        try:
            with self._device.active():
                return self.packed.copy_out(slot)
        except (MemoryError, RuntimeError) as error:
            raise EngineError("expected memory for a copy of a state, found too little: hold fewer states") from error

    def packed_in(self, state: PackedState, slot: int) -> None:
        with self._device.active():
            self.packed.copy_in(state, slot)

    def _move(
        self,
        move: Callable[[Mapping[str, torch.Tensor], int, int], None],
        sources: Sequence[int],
        targets: Sequence[int],
    ) -> None:
        """EngineError when there is no memory for what is between."""
        try:
            with self._device.active():
                for source, target in zip(sources, targets, strict=True):
                    move(self._tensors, source, target)
        except RuntimeError as error:
            raise EngineError(
                f"expected memory to pack or unpack {len(sources)} states, found none ({error}): use smaller pools"
            ) from error

    def _parts(
        self, blocks: Sequence[int], slots: Sequence[int]
    ) -> Iterator[tuple[str, torch.Tensor, int, Sequence[int]]]:
        """Name, tensor, axis and what is meant of it, of every pool."""
        for name, tensor in self._tensors.items():
            grows = self._specs[name].grows
            yield name, tensor, int(grows), blocks if grows else slots

    def _copy(self, pools: Iterator[torch.Tensor], axis: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        with self._device.active():
            if len(sources) <= _FEW:
                # The host waits for no step: indices would be copied to the device first.
                for pool in pools:
                    for source, target in zip(sources, targets, strict=True):
                        pool.select(axis, target).copy_(pool.select(axis, source))
                return
            source_index, target_index = self._index(sources), self._index(targets)
            for pool in pools:
                pool.index_copy_(axis, target_index, pool.index_select(axis, source_index))

    def _index(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self._device.torch)

    def _kv(self) -> Iterator[torch.Tensor]:
        return (tensor for name, tensor in self._tensors.items() if self._specs[name].grows)

    def _states(self) -> Iterator[torch.Tensor]:
        return (tensor for name, tensor in self._tensors.items() if not self._specs[name].grows)
