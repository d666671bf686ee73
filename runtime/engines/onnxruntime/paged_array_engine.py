"""What the paged engines over ONNX Runtime share: the artifact, pools in NumPy memory, and what is done to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from artifact.config import RuntimeConfig, read_config
from artifact.errors import EngineError
from artifact.paged import PAGED
from runtime.engines.onnxruntime.model_file import read_model
from runtime.engines.onnxruntime.paged_pools import ArrayPools
from runtime.engines.onnxruntime.states import engine_specs
from runtime.engines.paged import HostCopy, PagedEngine, PoolSizes, StepLimits

# More tokens at once make no step faster, but the scores of attention grow with tokens times context.
_STEP_TOKENS = 512


class PagedArrayEngine(PagedEngine):
    """The artifact, its limits and its pools; how a step runs is left to the engine."""

    def __init__(self, folder: str | Path) -> None:
        """ArtifactError when ``folder`` is not a complete artifact, EngineError when its layout is not paged."""
        self._folder = Path(folder).resolve()
        self.config: RuntimeConfig = read_config(self._folder)
        if self.config.layout != PAGED:
            raise EngineError(
                f"{folder}: expected layout paged, found {self.config.layout}: export with --layout paged"
            )
        self._specs = engine_specs(self.config.bindings.states)
        self._replaced_by = {spec.name: str(spec.replaced_by) for spec in self._specs}
        self._pools: ArrayPools | None = None

    @property
    def limits(self) -> StepLimits:
        rows = self.config.max_batch_size
        return StepLimits(max(_STEP_TOKENS, rows), rows)

    @property
    def slot_bytes(self) -> int:
        return sum(spec.unit_bytes for spec in self._specs if not spec.grows)

    def block_bytes(self, block_size: int) -> int:
        if block_size < 1:
            raise EngineError(f"expected blocks of at least 1 token, found {block_size}: choose a larger size")
        return block_size * sum(spec.unit_bytes for spec in self._specs if spec.grows)

    @property
    def pools(self) -> ArrayPools:
        """The pools; EngineError before ``allocate_pools``."""
        if self._pools is None:
            raise EngineError("expected pools, found none: call allocate_pools first")
        return self._pools

    def allocate_pools(self, sizes: PoolSizes) -> None:
        self._pools = None
        self._pools = ArrayPools(self._specs, self._pool_layouts(), sizes)

    def read_pool(self, name: str) -> np.ndarray:
        return self.pools.view(name)

    def fill_pools(self, value: float) -> None:
        for name in self.pools.arrays:
            self.pools.view(name)[...] = value

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

    def _pool_layouts(self) -> Mapping[str, tuple[int, ...]]:
        """Pools that the sessions hold in another order of axes than declared."""
        return {}

    def _read_model(self) -> ir.Model:
        return read_model(self._folder)
