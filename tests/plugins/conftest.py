"""TensorRT for the plugins' tests: the real module where it is installed, the stand-in elsewhere."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import pytest

from tests.plugins import stand_in


def installed_tensorrt() -> str:
    """The module ``tensorrt_rtx``, else ``tensorrt``; skips where neither is installed."""
    for name in ("tensorrt_rtx", "tensorrt"):
        # None in sys.modules: hidden from this process.
        if sys.modules.get(name, ...) is not None and importlib.util.find_spec(name) is not None:
            return name
    pytest.skip("needs the tensorrt-rtx package", allow_module_level=True)


@pytest.fixture(scope="session")
def trt() -> Any:
    """The module: ``tensorrt_rtx``, else ``tensorrt``, else the stand-in."""
    for name in ("tensorrt_rtx", "tensorrt"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return stand_in
