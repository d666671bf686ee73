"""The GPU and the TensorRT library that a built engine runs with."""

from __future__ import annotations

from hybridge.runtime.engines.tensorrt.cuda_memory import CudaMemory
from hybridge.runtime.engines.tensorrt.library import RuntimeLibrary, has_plugins
from hybridge.runtime.engines.tensorrt.memory import DeviceMemory
from hybridge.runtime.engines.tensorrt.selection import BuiltEngine


def open_device(built: BuiltEngine) -> tuple[DeviceMemory, RuntimeLibrary]:
    """Memory of this machine's GPU, and the library that built ``built``; EngineError where one cannot be opened."""
    memory = CudaMemory()
    try:
        return memory, RuntimeLibrary(built.record.library, plugins=has_plugins(built.record.layers))
    except BaseException:
        memory.close()
        raise
