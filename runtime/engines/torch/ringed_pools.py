"""Pools whose states may have rings; these are flushed before anything but a decode step reads the states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybridge.artifact.bindings import Binding
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.fusion.state_rings import RingLayer
from hybridge.runtime.engines.torch.paged_pools import TorchCopy, TorchPools
from hybridge.runtime.engines.torch.state_rings import StateRings


class RingedPools(TorchPools):
    """Rings are flushed before states are copied, saved or packed, and emptied when states are replaced."""

    def __init__(
        self,
        specs: Sequence[Binding],
        sizes: PoolSizes,
        device: TorchDevice,
        snapshots: Mapping[str, int],
        layers: Sequence[RingLayer],
    ) -> None:
        """As of TorchPools."""
        super().__init__(specs, sizes, device, snapshots)
        try:
            self.rings = StateRings(device, layers, sizes.num_slots + 1)
        except RuntimeError as error:
            raise EngineError(
                f"expected memory for the rings of {sizes.num_slots} slots, found too little: lower `memory_bytes`"
            ) from error

    def flush(self, slots: Sequence[int] | None = None) -> None:
        """Write the rings of ``slots`` (None: all) into the states."""
        self.rings.flush(self.tensors, slots)

    def read(self, name: str) -> np.ndarray:
        self.flush()
        return super().read(name)

    def fill(self, value: float) -> None:
        self.rings.empty(self.rings.used)
        super().fill(value)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.flush(sources)
        super().copy_slots(sources, targets)
        self.rings.empty(targets)

    def zero_slots(self, slots: Sequence[int]) -> None:
        super().zero_slots(slots)
        self.rings.empty(slots)

    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> TorchCopy:
        self.flush(slots)
        return super().swap_out(blocks, slots)

    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None:
        super().swap_in(copy, blocks, slots)
        self.rings.empty(slots)

    def pack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.flush(sources)
        super().pack_slots(sources, targets)

    def unpack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        super().unpack_slots(sources, targets)
        self.rings.empty(targets)
