"""The machine, the versions and the commit that numbers belong to."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import ROOT, seconds
from hybridge.artifact.errors import EngineError

PACKAGES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "numpy")
# Far beyond the last level of cache.
BANDWIDTH_BYTES = 512 * 2**20


def machine_json() -> dict[str, Any]:
    """machine, versions and commit, the first fields of every document."""
    return {
        "machine": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gb": round(_memory_bytes() / 1e9, 1),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "commit": _commit(),
    }


class OtherWork:
    """How busy other processes kept the machine since this object was made."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._busy, self._own = _busy_seconds(), _own_seconds()

    def share(self) -> float | None:
        """Processor time of others as a part of all there was, 0 to 1; None where the system does not say."""
        now = _busy_seconds()
        if now is None or self._busy is None:
            return None
        others = now - self._busy - (_own_seconds() - self._own)
        return max(0.0, others / ((time.perf_counter() - self._started) * (os.cpu_count() or 1)))


def device_json() -> dict[str, Any]:
    """Name, size and software of the GPU. EngineError without one."""
    import torch

    from hybridge.trt_plugins.kernels.compiler import compiler_version

    if not torch.cuda.is_available():
        raise EngineError("this benchmark expected a CUDA GPU, found none: run it on a machine with one")
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


class ReadBandwidth:
    """Reads a large array with ``threads`` threads. A call returns bytes per second of the faster of two ways."""

    def __init__(self, threads: int, nbytes: int = BANDWIDTH_BYTES) -> None:
        self._parts = np.array_split(np.ones(nbytes // 8, np.int64), threads)
        self._nbytes = nbytes
        self._pool = ThreadPoolExecutor(threads)

    def __call__(self) -> float:
        return max(self._nbytes / seconds(partial(self._read_all, way)) for way in (np.bitwise_or.reduce, _dot))

    def _read_all(self, way: Callable[[np.ndarray], object]) -> None:
        list(self._pool.map(way, self._parts))


def _dot(part: np.ndarray) -> float:
    numbers = part.view(np.float32)
    return float(np.dot(numbers, numbers))


def _busy_seconds() -> float | None:
    """Processor seconds of all processes since the machine started, time taken by the host (steal) included."""
    try:
        ticks = [int(value) for value in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Processor seconds of this process and of the children that have ended."""
    return sum(os.times()[:4])


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    simd = [name for name in ("avx2", "avx512f", "amx_tile") if name in named.get("flags", "").split()]
    identity = f"family {named.get('cpu family', '?')} model {named.get('model', '?')}"
    return f"{named.get('model name', platform.machine())} ({', '.join([identity, *simd])})"


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The short commit of the checkout, marked when tracked files differ from it; "unknown" outside one."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return f"{commit}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
