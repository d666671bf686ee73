"""The machine of a hardware check."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import HybridgeError
from hybridge.trt_plugins.build.capability import local_capability
from hybridge.trt_plugins.build.target import this_machine
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.driver import checked, cuda_driver

PACKAGES = (
    "tensorrt",
    "tensorrt-rtx",
    "cuda-core",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "onnxruntime",
    "onnx",
    "numpy",
)
_MIB = 1 << 20


def machine_document() -> dict[str, Any]:
    """System, versions, the TensorRT modules that can be imported, and the GPU (None without one)."""
    versions = {name: version for name in PACKAGES if (version := _version(name)) is not None}
    return {
        "system": platform.platform(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "versions": versions,
        "libraries": list(this_machine().libraries),
        "gpu": _gpu(),
        "memory": _memory(),
        "board": _board(),
    }


def _memory() -> dict[str, int]:
    """Memory and swap of the machine, in MiB; empty where the system does not report it."""
    wanted = {"MemTotal": "total_mib", "MemAvailable": "available_mib", "SwapTotal": "swap_mib"}
    lines = (line.split() for line in _text(Path("/proc/meminfo")).splitlines())
    return {wanted[key[:-1]]: int(size) >> 10 for key, size, *_ in lines if key[:-1] in wanted}


def _board() -> dict[str, str]:
    """A Jetson's description: model, release of Jetson Linux, and power mode; empty elsewhere."""
    release = _text(Path("/etc/nv_tegra_release")).partition("\n")[0]
    if not release:
        return {}
    found = {"model": _text(Path("/proc/device-tree/model")).rstrip("\0"), "release": release}
    if (nvpmodel := shutil.which("nvpmodel")) is not None:
        answer = subprocess.run([nvpmodel, "-q"], capture_output=True, text=True, timeout=10, check=False)
        found["power_mode"] = " ".join(answer.stdout.split())
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _gpu() -> dict[str, Any] | None:
    capability = local_capability()
    if capability is None:
        return None
    found: dict[str, Any] = {"capability": capability}
    try:
        driver = cuda_driver()
        handle = checked(driver.cuDeviceGet(0), "opening GPU 0")
        name = checked(driver.cuDeviceGetName(128, handle), "asking for the GPU's name")
        found["name"] = name.split(b"\0")[0].decode()
        found["memory_mib"] = int(checked(driver.cuDeviceTotalMem(handle), "asking for its memory")) // _MIB
        found["driver"] = int(checked(driver.cuDriverGetVersion(), "asking for the driver's version"))
        found["multiprocessors"] = KernelDevice.current().traits.multiprocessors
    except HybridgeError as error:
        found["note"] = str(error)
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        # JetPack's tensorrt is a module without a distribution.
        return "installed" if importlib.util.find_spec(name.replace("-", "_")) is not None else None
