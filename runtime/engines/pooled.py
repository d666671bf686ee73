"""A paged engine over one set of pools: the artifact, what a block and a slot take, and what is done to the pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from hybridge.artifact.bindings import Binding
from hybridge.artifact.config import CONFIG_FILE, RuntimeConfig, read_config
from hybridge.artifact.errors import EngineError
from hybridge.artifact.paged import PAGED
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.packed_state import PackedState, packed_bytes
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.step_limits import StepLimits


class Pools(Protocol):
    """Pools of every layer; the methods are those of ``PagedEngine``."""

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...
    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...
    def zero_slots(self, slots: Sequence[int]) -> None: ...
    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> HostCopy: ...
    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None: ...
    def arrays_from_copy(self, copy: HostCopy) -> dict[str, np.ndarray]: ...
    def copy_from_arrays(self, arrays: Mapping[str, np.ndarray], blocks: int, slots: int) -> HostCopy: ...


class PackingPools(Pools, Protocol):
    """Pools that have states in 8 bits too."""

    def pack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...
    def unpack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...
    def packed_out(self, slot: int) -> PackedState: ...
    def packed_in(self, state: PackedState, slot: int) -> None: ...


P = TypeVar("P", bound=Pools)
Q = TypeVar("Q", bound=PackingPools)


class PooledEngine(PagedEngine, Generic[P]):
    """The artifact and its pools; how a step runs and how pools are made is left to the engine."""

    # What says which pools the graph has.
    _config_file: ClassVar[str] = CONFIG_FILE
    # New tokens of a step, beyond which it becomes no faster.
    _step_tokens: int
    _specs: tuple[Binding, ...]

    def __init__(self, folder: str | Path) -> None:
        """ArtifactError when ``folder`` is not a complete artifact, EngineError when its layout is not paged."""
        self._folder = Path(folder).resolve()
        self.config: RuntimeConfig = read_config(self._folder, self._config_file)
        if self.config.layout != PAGED:
            raise EngineError(
                f"{folder}: expected layout paged, found {self.config.layout}: export with `layout='paged'`"
            )
        self._pools: P | None = None

    @property
    def limits(self) -> StepLimits:
        rows = self.config.max_batch_size
        return StepLimits(max(self._step_tokens, rows), rows)

    @property
    def slot_bytes(self) -> int:
        return sum(spec.unit_bytes for spec in self._specs if not spec.grows)

    def block_bytes(self, block_size: int) -> int:
        if block_size < 1:
            raise EngineError(f"expected blocks of at least 1 token, found {block_size}: choose a larger size")
        return block_size * sum(spec.unit_bytes for spec in self._specs if spec.grows)

    @property
    def pools(self) -> P:
        """The pools; EngineError before ``allocate_pools``."""
        if self._pools is None:
            raise EngineError("expected pools, found none: call allocate_pools first")
        return self._pools

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.pools.copy_blocks(sources, targets)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.pools.copy_slots(sources, targets)

    def zero_slots(self, slots: Sequence[int]) -> None:
        self.pools.zero_slots(slots)

    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> HostCopy:
        return self.pools.swap_out(blocks, slots)

    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self.pools.swap_in(copy, blocks, slots)

    def arrays_from_copy(self, copy: HostCopy) -> dict[str, np.ndarray]:
        return self.pools.arrays_from_copy(copy)

    def copy_from_arrays(self, arrays: Mapping[str, np.ndarray], blocks: int, slots: int) -> HostCopy:
        return self.pools.copy_from_arrays(arrays, blocks, slots)


class PackingEngine(PooledEngine[Q]):
    """A paged engine whose pools have states in 8 bits too."""

    def packed_slot_bytes(self, kind: str) -> int:
        return sum(packed_bytes(spec) for spec in self._specs if not spec.grows)

    def pack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.pools.pack_slots(sources, targets)

    def unpack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.pools.unpack_slots(sources, targets)

    def packed_out(self, slot: int) -> PackedState:
        return self.pools.packed_out(slot)

    def packed_in(self, state: PackedState, slot: int) -> None:
        self.pools.packed_in(state, slot)
