"""What a run on a GPU ran on, told with no more packages than the kernels need."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from hybridge.artifact.errors import HybridgeError
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.driver import checked, cuda_driver

PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "cuda-core",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "onnx",
    "numpy",
    "pytest",
)


def machine() -> dict[str, Any]:
    """System, Python, installed packages, and GPU 0 (None where there is none that the driver can use)."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"system": platform.platform(), "python": platform.python_version(), "versions": versions, "gpu": _gpu()}


def _gpu() -> dict[str, Any] | None:
    try:
        driver = cuda_driver()
        traits = KernelDevice.current().traits
        handle = checked(driver.cuDeviceGet(0), "opening GPU 0")
        name = checked(driver.cuDeviceGetName(128, handle), "asking for the GPU's name")
        version = checked(driver.cuDriverGetVersion(), "asking for the driver's version")
    except HybridgeError:
        return None
    return {
        "name": name.split(b"\0")[0].decode(),
        "capability": ".".join(str(number) for number in traits.capability),
        "multiprocessors": traits.multiprocessors,
        "driver": int(version),
    }
