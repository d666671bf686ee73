"""One execution context with what has been bound to it: only what changes is set again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt.library import RuntimeLibrary


class BoundContext:
    """An execution context of one optimization profile. Contexts of an engine share scratch memory: one runs at a time.

    scratch: address and bytes of device memory of at least the engine's device_memory_size_v2.
    """

    def __init__(
        self,
        library: RuntimeLibrary,
        engine: Any,
        profile: int,
        scratch: tuple[int, int],
        stream: int,
        fixed_shapes: bool,
    ) -> None:
        """Create the context; EngineError when TensorRT refuses."""
        self._library, self._stream = library, stream
        self._context: Any = library.create_context(engine, fixed_shapes)
        self._addresses: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._demand("choose the profile", "set_optimization_profile_async", profile, stream)
        self._context.set_device_memory(*scratch)

    def bind(self, addresses: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Set the address of every tensor and the shape of every input that differ from what was set before.

        EngineError names the tensor that TensorRT refuses, or one that is left without a shape.
        """
        for name, address in addresses.items():
            if self._addresses.get(name) != address:
                self._demand(f"bind {name}", "set_tensor_address", name, address)
                self._addresses[name] = address
        changed = {name: shape for name, shape in shapes.items() if self._shapes.get(name) != shape}
        for name, shape in changed.items():
            self._demand(f"take {name} of shape {list(shape)}", "set_input_shape", name, shape)
            self._shapes[name] = shape
        missing = self._context.infer_shapes() if changed else ()
        if missing:
            raise EngineError(f"expected every input bound, found no shape of {missing[0]}: build the engine again")

    def enqueue(self) -> None:
        """Enqueue one step; EngineError with what a plugin or TensorRT says when that fails."""
        self._demand("run a step", "execute_async_v3", self._stream)

    @property
    def capturable(self) -> bool:
        """Whether a step can be captured in a CUDA graph, as far as TensorRT tells beforehand (RTX does)."""
        ask = getattr(self._context, "is_stream_capturable", None)
        return ask is None or bool(ask(self._stream))

    def close(self) -> None:
        """Release the context; calling it twice is allowed."""
        self._context = None

    def _demand(self, doing: str, method: str, *arguments: Any) -> None:
        self._library.demand(lambda: getattr(self._context, method)(*arguments), doing)
