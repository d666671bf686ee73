"""Host memory for what the tree on the device evicts.

A second radix tree, whose blocks and slots are copies on the host. Both evict on their own: what the device evicts
comes here, what is evicted here is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.artifact.errors import EngineError
from hybridge.runtime.blocks.sequence_memory import NONE
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.packed_rows import EXACT
from hybridge.runtime.engines.packed_state import PackedState
from hybridge.runtime.prefix_cache.events import EventLog
from hybridge.runtime.prefix_cache.node import Node
from hybridge.runtime.prefix_cache.radix_tree import RadixTree
from hybridge.runtime.prefix_cache.token_key import cut
from hybridge.runtime.prefix_cache.token_tree import TreeMatch
from hybridge.runtime.prefix_cache.transfer import DeviceCache


class _HostParts:
    """Copies by number, with reference counts."""

    def __init__(self) -> None:
        self._parts: dict[int, HostCopy] = {}
        self._references: dict[int, int] = {}
        self._next = 0
        self.nbytes = 0

    def add(self, part: HostCopy) -> int:
        """Keep ``part``, with one reference."""
        number, self._next = self._next, self._next + 1
        self._parts[number], self._references[number] = part, 1
        self.nbytes += part.nbytes
        return number

    def __getitem__(self, number: int) -> HostCopy:
        return self._parts[number]

    def retain(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._references[number] += 1

    def release(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._references[number] -= 1
            if not self._references[number]:
                self.nbytes -= self._parts.pop(number).nbytes
                del self._references[number]


class _Stored:
    """A prefix in the tree on the host, as ``DeviceCache.copy_in`` reads it."""

    def __init__(self, blocks: Sequence[HostCopy], state: HostCopy | None) -> None:
        self._blocks, self._state = blocks, state

    def block(self, index: int) -> HostCopy:
        return self._blocks[index]

    def state(self) -> HostCopy:
        assert self._state is not None
        return self._state


class HostTier:
    """At most ``budget`` bytes of host memory for the cache of ``device``."""

    def __init__(self, device: DeviceCache, budget: int) -> None:
        self._device, self._budget = device, budget
        self.start_over()

    def start_over(self) -> None:
        """Forget all of it, whatever state it is in."""
        cache = self._device.cache
        self._blocks, self._slots = _HostParts(), _HostParts()
        # Without events, which have no reader, and whose tokens would take memory beyond the budget.
        self.tree = RadixTree(
            self._blocks, self._slots, cache.block_size, cache.needs.kv, cache.needs.state, events=EventLog(0)
        )

    @property
    def nbytes(self) -> int:
        """Host memory in use."""
        return self._blocks.nbytes + self._slots.nbytes

    def spill(self, node: Node) -> None:
        """Copy what can be resumed at ``node`` of the device's tree, as far as it is not here already."""
        cache, tree = self._device.cache, self.tree
        if cache.needs.state and node.state is None:
            return
        key, namespace = node.key, node.root.namespace
        match = tree.match(key, namespace)
        if match.length == node.end:
            tree.touch(match.node)
            return
        first = match.known // cache.block_size
        device_blocks = cache.tree.blocks_of(node)[first:] if match.known < node.end else []
        try:
            state = None if node.state is None else self._copied(node.state)
            if not self._fits(node.end, state):
                return
            copies = [self._device.blocks_out([block]) for block in device_blocks]
        except EngineError:
            return  # host memory is short: it is lost, as without this tier
        numbers = [self._blocks.add(copy) for copy in copies]
        slot = None if state is None else self._slots.add(state)
        _, taken = tree.insert(key, [NONE] * first + numbers, slot, namespace)
        self._blocks.release(numbers)
        if slot is not None and not taken:
            self._slots.release([slot])
        cache.metrics.spilled_states += taken
        cache.metrics.spilled_blocks += len(numbers)
        while self.nbytes > self._budget and tree.evict_kv():
            pass

    def clear(self) -> None:
        """Evict all of it."""
        self.tree.clear()

    def restore(self, key: bytes, namespace: str) -> bool:
        """Bring back what ``key`` can be resumed from, if that is more than what the device has and can take."""
        match = self.tree.match(key, namespace)
        if match.length <= self._device.cache.tree.match(key, namespace).length:
            return False
        found = cut(key, 0, match.length)
        self.tree.lock(match.node)  # to make room on the device spills to here
        try:
            return self._device.copy_in(found, namespace, self._stored(match))
        except EngineError:
            return False  # it is computed again
        finally:
            self.tree.unlock(match.node)

    def _fits(self, tokens: int, state: HostCopy | None) -> bool:
        """Whether a prefix fits into the budget when all else is evicted."""
        size, engine = self._device.cache.block_size, self._device.engine
        blocks = -(-tokens // size) * engine.block_bytes(size) if self._device.cache.needs.kv else 0
        return blocks + (0 if state is None else state.nbytes) <= self._budget

    def _copied(self, slot: int) -> HostCopy:
        copy, kind = self._device.state_out(slot), self._device.cache.settings.host_states
        if kind == EXACT or isinstance(copy, PackedState):
            return copy
        return PackedState.of(self._device.engine.arrays_from_copy(copy), kind)

    def _stored(self, match: TreeMatch) -> _Stored:
        blocks = [self._blocks[number] for number in self.tree.blocks_of(match.node, match.length)]
        state = match.node.state
        return _Stored(blocks, None if state is None else self._slots[state])
