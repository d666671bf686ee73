"""Skips tests marked ``gpu`` where no CUDA GPU is present, with the reason."""

from __future__ import annotations

import ctypes

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _gpu_count() == 0:
        skip = pytest.mark.skip(reason="needs a CUDA GPU and its driver")
        for item in items:
            if item.get_closest_marker("gpu") is not None:
                item.add_marker(skip)


def _gpu_count() -> int:
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if found else 0
