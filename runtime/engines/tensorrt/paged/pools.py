"""The pools of a paged engine in device memory.

A pool whose output shares its input's memory has one buffer. Any other has two, and after each step the input and the
output swap roles: ``turn`` (0 or 1) says which of the two holds the pool now.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from hybridge.artifact.bindings import BLOCK_SIZE, NUM_BLOCKS, NUM_SLOTS
from hybridge.artifact.errors import EngineError
from hybridge.artifact.kv_dtypes import filled_with
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.packed_slots import PackedSlots
from hybridge.runtime.engines.packed_state import PackedState
from hybridge.runtime.engines.pool_arrays import pool_array
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.tensorrt.binding_check import StateBinding
from hybridge.runtime.engines.tensorrt.memory import DeviceMemory


class DeviceCopy(HostCopy):
    """Blocks [parts, count, ...] and slots [count, ...] by pool name, in host memory."""

    def __init__(self, blocks: int, slots: int, arrays: Mapping[str, np.ndarray]) -> None:
        self.blocks, self.slots, self.arrays = blocks, slots, arrays

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


class _Pool:
    """One pool: its bindings, shape, and the addresses of its buffers, twice the same if it is aliased."""

    def __init__(self, binding: StateBinding, shape: tuple[int, ...], addresses: tuple[int, int]) -> None:
        self.spec, self.output, self.shape, self.addresses = binding.spec, binding.output, shape, addresses
        self.grows = binding.spec.grows
        # A KV pool has one or two parts, each by block.
        self.parts = shape[0] if self.grows else 1
        inner = shape[2:] if self.grows else shape[1:]
        self.unit_bytes = math.prod(inner) * binding.spec.dtype.itemsize
        self.count = shape[1] if self.grows else shape[0]

    @property
    def nbytes(self) -> int:
        return self.parts * self.count * self.unit_bytes

    def unit_addresses(self, base: int, unit: int) -> Iterator[int]:
        """The addresses of block or slot ``unit``, one in each part, of the buffer at ``base``."""
        for part in range(self.parts):
            yield base + (part * self.count + unit) * self.unit_bytes


class DevicePools:
    """One pool for each of ``bindings``, in the layout of its declaration. States in 8 bits are in host memory."""

    def __init__(
        self, memory: DeviceMemory, bindings: Sequence[StateBinding], sizes: PoolSizes, snapshots: int = 0
    ) -> None:
        """``snapshots``: slots for states after draft tokens, at the end. OutOfDeviceMemory: too little memory."""
        self.sizes, self.turn = sizes, 0
        self._memory = memory
        slots = max(1, sizes.num_slots + snapshots)
        axes = {NUM_BLOCKS: max(1, sizes.num_blocks), BLOCK_SIZE: sizes.block_size, NUM_SLOTS: slots}
        self._owned = ExitStack()
        self._pools: dict[str, _Pool] = {}
        try:
            self._packed = PackedSlots([binding.spec for binding in bindings], sizes)
        except MemoryError as error:
            raise EngineError(
                f"expected host memory for {sizes.num_packed} cached states, found too little: lower `cached_states`"
            ) from error
        try:
            for binding in bindings:
                shape = binding.spec.resolve(**axes)
                self._pools[binding.spec.name] = _Pool(binding, shape, self._allocate(binding, shape))
        except BaseException:
            self._owned.close()
            raise

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every pool by input name."""
        return {name: pool.shape for name, pool in self._pools.items()}

    def addresses(self) -> dict[str, int]:
        """The address of every pool's input and output tensor in a step of this turn."""
        found = {}
        for name, pool in self._pools.items():
            found[name], found[pool.output] = pool.addresses[self.turn], pool.addresses[1 - self.turn]
        return found

    def advance(self) -> None:
        """Take over what a step has written; where all pools have one buffer there is one turn only."""
        if any(pool.addresses[0] != pool.addresses[1] for pool in self._pools.values()):
            self.turn = 1 - self.turn

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._copy(True, sources, targets)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._copy(False, sources, targets)

    def zero_slots(self, slots: Sequence[int]) -> None:
        for pool in self._of(grows=False):
            for slot in slots:
                for address in pool.unit_addresses(pool.addresses[self.turn], slot):
                    self._memory.zero(address, pool.unit_bytes)

    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> DeviceCopy:
        """EngineError when there is no host memory for the copy."""
        try:
            arrays = {name: np.empty(shape, dtype) for name, shape, dtype in self._parts(len(blocks), len(slots))}
        except MemoryError as error:
            raise EngineError(
                f"expected memory for a copy of {len(blocks)} blocks and {len(slots)} slots, found too little: "
                "hold fewer sequences at once"
            ) from error
        for address, there, nbytes in self._transfers(arrays, blocks, slots):
            self._memory.copy(there, address, nbytes)
        self._memory.synchronize()
        return DeviceCopy(len(blocks), len(slots), arrays)

    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """EngineError when the copy is of another engine or of another size."""
        if not isinstance(copy, DeviceCopy) or (copy.blocks, copy.slots) != (len(blocks), len(slots)):
            raise EngineError(
                f"expected a copy of {len(blocks)} blocks and {len(slots)} slots by this engine, found "
                f"{type(copy).__name__} of {copy.blocks} and {copy.slots}: pass as many as were swapped out"
            )
        for address, there, nbytes in self._transfers(copy.arrays, blocks, slots):
            self._memory.copy(address, there, nbytes)
        self._memory.synchronize()  # the copy may be freed from now on

    def pack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """As ``PagedEngine.pack_slots``; waits for the device."""
        for source, target in zip(sources, targets, strict=True):
            arrays = self.swap_out([], [source]).arrays
            for name in self._packed.names:
                self._packed.write(name, arrays[name], [target])

    def unpack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """As ``PagedEngine.unpack_slots``; waits for the device."""
        for source, target in zip(sources, targets, strict=True):
            arrays = {name: np.empty(shape, dtype) for name, shape, dtype in self._parts(0, 1)}
            arrays |= {name: np.ascontiguousarray(self._packed.read(name, [source])) for name in self._packed.names}
            self.swap_in(DeviceCopy(0, 1, arrays), [], [target])

    def packed_out(self, slot: int) -> PackedState:
        """A copy of a packed slot."""
        return self._packed.copy_out(slot)

    def packed_in(self, state: PackedState, slot: int) -> None:
        """Write ``state`` over a packed slot."""
        self._packed.copy_in(state, slot)

    def arrays_from_copy(self, copy: HostCopy) -> dict[str, np.ndarray]:
        """The contents of ``copy``; EngineError when another engine made it."""
        if not isinstance(copy, DeviceCopy):
            raise EngineError(f"expected a copy by this engine, found {type(copy).__name__}: take it with swap_out")
        return {name: array.copy() for name, array in copy.arrays.items()}

    def copy_from_arrays(self, arrays: Mapping[str, np.ndarray], blocks: int, slots: int) -> DeviceCopy:
        """The inverse; EngineError when an array is missing, of another shape or beyond the pool's type."""
        stored = {}
        for name, shape, _ in self._parts(blocks, slots):
            found = None if name not in arrays else arrays[name].shape
            if found != shape:
                raise EngineError(f"{name}: expected an array {list(shape)}, found {found}: use one of the same model")
            stored[name] = np.array(pool_array(name, arrays[name], self._pools[name].spec.dtype), order="C")
        return DeviceCopy(blocks, slots, stored)

    def read(self, name: str) -> np.ndarray:
        """A copy of one pool, without slots for snapshots."""
        pool, sizes = self._pools[name], self.sizes
        found = np.empty(pool.shape, pool.spec.dtype.numpy)
        self._memory.copy(found.ctypes.data, pool.addresses[self.turn], pool.nbytes)
        self._memory.synchronize()
        return found[:, : sizes.num_blocks] if pool.grows else found[: sizes.num_slots]

    def fill(self, value: float) -> None:
        """Overwrite all pools with ``value``."""
        for pool in self._pools.values():
            dtype = pool.spec.dtype
            filled = np.full(pool.shape, filled_with(value, dtype), dtype.numpy)
            self._memory.copy(pool.addresses[self.turn], filled.ctypes.data, pool.nbytes)
            self._memory.synchronize()

    def free(self) -> None:
        """Give the memory back; calling it twice is allowed. No work on it may be pending."""
        self._owned.close()

    def _allocate(self, binding: StateBinding, shape: tuple[int, ...]) -> tuple[int, int]:
        nbytes = math.prod(shape) * binding.spec.dtype.itemsize
        addresses = []
        for _ in range(1 if binding.aliased else 2):
            allocation = self._memory.allocate(nbytes, f"the pool {binding.spec.name}")
            self._owned.callback(allocation.free)
            addresses.append(allocation.address)
        return addresses[0], addresses[-1]

    def _of(self, grows: bool) -> Iterator[_Pool]:
        return (pool for pool in self._pools.values() if pool.grows is grows)

    def _copy(self, grows: bool, sources: Sequence[int], targets: Sequence[int]) -> None:
        for pool in self._of(grows):
            base = pool.addresses[self.turn]
            for source, target in zip(sources, targets, strict=True):
                for there, here in zip(
                    pool.unit_addresses(base, target), pool.unit_addresses(base, source), strict=True
                ):
                    self._memory.copy(there, here, pool.unit_bytes)

    def _parts(self, blocks: int, slots: int) -> Iterator[tuple[str, tuple[int, ...], np.dtype]]:
        """Name, shape and type of a copy of so many blocks and slots, by pool."""
        axes = {NUM_BLOCKS: blocks, BLOCK_SIZE: self.sizes.block_size, NUM_SLOTS: slots}
        for name, pool in self._pools.items():
            yield name, pool.spec.resolve(**axes), pool.spec.dtype.numpy

    def _transfers(
        self, arrays: Mapping[str, np.ndarray], blocks: Sequence[int], slots: Sequence[int]
    ) -> Iterator[tuple[int, int, int]]:
        """Address in a pool, address in an array, and bytes, of every block and slot in order."""
        for name, pool in self._pools.items():
            units, there = blocks if pool.grows else slots, arrays[name].ctypes.data
            for part in range(pool.parts):
                for index, unit in enumerate(units):
                    address = pool.addresses[self.turn] + (part * pool.count + unit) * pool.unit_bytes
                    yield address, there + (part * len(units) + index) * pool.unit_bytes, pool.unit_bytes


def pool_bytes(bindings: Sequence[StateBinding], axis: str) -> int:
    """Bytes of one element of ``axis`` (NUM_BLOCKS, NUM_SLOTS) in all pools and buffers; with a symbolic block size, of
    one token of a block."""
    return sum(b.spec.unit_bytes * (1 if b.aliased else 2) for b in bindings if axis in b.spec.shape)
