"""What a number depends on besides the code: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import seconds

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "numpy")
# Far beyond the last level of cache.
BANDWIDTH_BYTES = 512 * 2**20


def machine_json() -> dict[str, Any]:
    """machine, versions and commit, as every document begins with them."""
    return {
        "machine": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gb": round(_memory_bytes() / 1e9, 1),
            "system": f"{platform.system()} {platform.machine()}",
            "load_average": [round(load, 2) for load in os.getloadavg()],
        },
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "commit": _commit(),
    }


class ReadBandwidth:
    """Reads one large array with ``threads`` threads; called, it returns bytes per second of the faster of two ways."""

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
