"""Skips tests marked ``gpu`` where no CUDA GPU is present, with the reason; a file of such tests is not imported."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

REASON = "needs a CUDA GPU and its driver"


class FileOfGpuTests(pytest.Module):
    """A file whose tests all need a GPU, on a machine without one."""

    def collect(self) -> NoReturn:
        pytest.skip(REASON, allow_module_level=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Any:
    # A list of the tests (--collect-only) has them on every machine.
    listed = parent.config.option.collectonly
    if module_path.name.endswith("_gpu.py") and not listed and _gpu_count() == 0:
        return FileOfGpuTests.from_parent(parent, path=module_path)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _gpu_count() == 0:
        skip = pytest.mark.skip(reason=REASON)
        for item in items:
            if item.get_closest_marker("gpu") is not None:
                item.add_marker(skip)


@cache
def _gpu_count() -> int:
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if found else 0
