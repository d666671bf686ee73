"""An engine on the device with the tensors that all its contexts share, and new contexts of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridge.runtime.engines.tensorrt.bound_context import BoundContext
from hybridge.runtime.engines.tensorrt.library import RuntimeLibrary
from hybridge.runtime.engines.tensorrt.memory import Allocation, DeviceMemory


class LoadedEngine:
    """``engine`` (trt.ICudaEngine). Its contexts use ``scratch``, one at a time."""

    def __init__(
        self,
        library: RuntimeLibrary,
        memory: DeviceMemory,
        engine: Any,
        scratch: Allocation,
        profiles: Mapping[str, int],
    ) -> None:
        """``profiles``: indices by name."""
        self._library, self.memory, self._engine = library, memory, engine
        self._scratch, self._profiles = (scratch.address, scratch.nbytes), profiles

    @property
    def scratch_address(self) -> int:
        """Memory that no context uses between steps."""
        return self._scratch[0]

    def context(self, profile: str, fixed_shapes: bool) -> BoundContext:
        """A new context of ``profile``; ``fixed_shapes``: it will run one shape many times."""
        return BoundContext(
            self._library, self._engine, self._profiles[profile], self._scratch, self.memory.stream, fixed_shapes
        )

    def close(self) -> None:
        """Release the engine, after its contexts; calling it twice is allowed."""
        self._engine = None
