"""The pools of a paged engine in NumPy memory that sessions read and write directly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from hybridge.artifact.bindings import BLOCK_SIZE, NUM_BLOCKS, NUM_SLOTS, Binding
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.onnxruntime.slot_ranges import SlotRanges
from hybridge.runtime.engines.packed_slots import PackedSlots
from hybridge.runtime.engines.packed_state import PackedState
from hybridge.runtime.engines.pool_arrays import pool_array
from hybridge.runtime.engines.pool_sizes import PoolSizes

_NO_SNAPSHOTS: Mapping[str, int] = MappingProxyType({})


class ArrayCopy(HostCopy):
    """Blocks [parts, count, ...] and slots [count, ...] by pool name, in the pools' own layout."""

    def __init__(self, blocks: int, slots: int, arrays: Mapping[str, np.ndarray]) -> None:
        self.blocks, self.slots, self.arrays = blocks, slots, arrays

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


class ArrayPools:
    """One array for each pool of ``specs``, of the shapes in ``layouts`` where the sessions' differ from the specs'.

    layouts: pool name to the order of the spec's axes in the array. Each KV pool has one block more than ``sizes``
    says, and each pool of states one slot more, for tokens without a slot or block. snapshots: slots after these,
    by pool, from ``first_snapshot`` on; they take memory only as they are written.
    """

    def __init__(
        self,
        specs: Sequence[Binding],
        layouts: Mapping[str, tuple[int, ...]],
        sizes: PoolSizes,
        snapshots: Mapping[str, int] = _NO_SNAPSHOTS,
    ) -> None:
        self.sizes, self.first_snapshot = sizes, sizes.num_slots + 1
        self._specs = {spec.name: spec for spec in specs}
        self._layouts = layouts
        axes = {NUM_BLOCKS: sizes.num_blocks + 1, BLOCK_SIZE: sizes.block_size, NUM_SLOTS: sizes.num_slots + 1}
        try:
            self._arrays = {
                spec.name: self._allocate(spec, {**axes, NUM_SLOTS: axes[NUM_SLOTS] + snapshots.get(spec.name, 0)})
                for spec in specs
            }
            self.packed = PackedSlots(specs, sizes)
            self.ranges = SlotRanges({name: array for name, array in self._arrays.items() if not self._is_kv(name)})
        except MemoryError as error:
            raise EngineError(
                f"expected memory for {sizes.num_blocks} blocks and {sizes.num_slots} slots, found too little: "
                "lower `memory_bytes` or `max_seq_len`"
            ) from error

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The arrays by graph input name, as the sessions use them."""
        return MappingProxyType(self._arrays)

    def view(self, name: str) -> np.ndarray:
        """One pool in the layout of its declaration, with the blocks or slots of ``sizes`` alone."""
        array = self._arrays[name]
        order = self._layouts.get(name)
        if order is not None:
            array = array.transpose(np.argsort(order))
        return array[:, : self.sizes.num_blocks] if self._is_kv(name) else array[: self.sizes.num_slots]

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for array in self._kv():
            array[:, list(targets)] = array[:, list(sources)]

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._copy_slots(self._states(), sources, targets)

    def copy_states(self, pools: Iterable[str], sources: Sequence[int], targets: Sequence[int]) -> None:
        """``copy_slots`` in some pools of states."""
        self._copy_slots([self._arrays[name] for name in pools], sources, targets)

    def zero_slots(self, slots: Sequence[int]) -> None:
        for array in self._states():
            for slot in slots:
                array[slot] = 0

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        for array in self._kv():
            array[:, list(blocks)] = 0

    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> ArrayCopy:
        """EngineError when there is no memory for the copy."""
        try:
            arrays = {
                name: array[:, list(blocks)] if self._is_kv(name) else array[list(slots)]
                for name, array in self._arrays.items()
            }
        except MemoryError as error:
            raise EngineError(
                f"expected memory for a copy of {len(blocks)} blocks and {len(slots)} slots, found too little: "
                "hold fewer sequences at once"
            ) from error
        return ArrayCopy(len(blocks), len(slots), arrays)

    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """EngineError when the copy is of another engine or of another size."""
        if not isinstance(copy, ArrayCopy) or (copy.blocks, copy.slots) != (len(blocks), len(slots)):
            raise EngineError(
                f"expected a copy of {len(blocks)} blocks and {len(slots)} slots by this engine, found "
                f"{type(copy).__name__} of {copy.blocks} and {copy.slots}: pass as many as were swapped out"
            )
        for name, array in self._arrays.items():
            if self._is_kv(name):
                array[:, list(blocks)] = copy.arrays[name]
            else:
                array[list(slots)] = copy.arrays[name]

    def arrays_from_copy(self, copy: HostCopy) -> dict[str, np.ndarray]:
        """The arrays of ``copy`` in the layout of their declarations."""
        assert isinstance(copy, ArrayCopy)
        return {
            name: array.transpose(np.argsort(self._layouts[name])) if name in self._layouts else array
            for name, array in copy.arrays.items()
        }

    def copy_from_arrays(self, arrays: Mapping[str, np.ndarray], blocks: int, slots: int) -> ArrayCopy:
        """EngineError when an array is missing, of another shape or beyond the pool's type."""
        axes = {NUM_BLOCKS: blocks, BLOCK_SIZE: self.sizes.block_size, NUM_SLOTS: slots}
        stored = {}
        for name, spec in self._specs.items():
            shape, found = tuple(spec.resolve(**axes)), None if name not in arrays else arrays[name].shape
            if found != shape:
                raise EngineError(f"{name}: expected an array {list(shape)}, found {found}: it is of another model")
            order = self._layouts.get(name, range(len(shape)))
            stored[name] = pool_array(name, arrays[name], spec.dtype).transpose(tuple(order)).copy()
        return ArrayCopy(blocks, slots, stored)

    def pack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for name in self.packed.names:
            self.packed.write(name, self.view(name)[list(sources)], targets)

    def unpack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for name in self.packed.names:
            self.view(name)[list(targets)] = self.packed.read(name, sources)

    def packed_out(self, slot: int) -> PackedState:
        return self.packed.copy_out(slot)

    def packed_in(self, state: PackedState, slot: int) -> None:
        self.packed.copy_in(state, slot)

    def _allocate(self, spec: Binding, axes: Mapping[str, int]) -> np.ndarray:
        shape = spec.resolve(**axes)
        order = self._layouts.get(spec.name, range(len(shape)))
        return np.zeros([shape[axis] for axis in order], spec.dtype.numpy)

    @staticmethod
    def _copy_slots(arrays: Iterable[np.ndarray], sources: Sequence[int], targets: Sequence[int]) -> None:
        """One slot at a time: NumPy copies what lists of indices select twice, and takes longer to begin."""
        pairs = list(zip(sources, targets, strict=True))
        for array in arrays:
            for source, target in pairs:
                array[target] = array[source]

    def _is_kv(self, name: str) -> bool:
        return NUM_BLOCKS in self._specs[name].shape

    def _kv(self) -> Iterator[np.ndarray]:
        return (array for name, array in self._arrays.items() if self._is_kv(name))

    def _states(self) -> Iterator[np.ndarray]:
        return (array for name, array in self._arrays.items() if not self._is_kv(name))
