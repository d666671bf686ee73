"""What a kernel benchmark ran on."""

from __future__ import annotations

from typing import Any

import torch

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.kernels.compiler import compiler_version


def device_json() -> dict[str, Any]:
    """Name, size and software of the GPU; EngineError without one."""
    if not torch.cuda.is_available():
        raise EngineError("the kernel benchmarks expected a CUDA GPU, found none: run them on a machine with one")
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nvrtc": compiler_version(),
    }
