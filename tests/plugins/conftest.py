"""TensorRT for the plugins' tests: the real module where it is installed, the stand-in elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plugins import stand_in


@pytest.fixture(scope="session")
def trt() -> Any:
    """The module: ``tensorrt_rtx``, else ``tensorrt``, else the stand-in."""
    for name in ("tensorrt_rtx", "tensorrt"):
        try:
            return __import__(name)
        except ImportError:
            continue
    return stand_in
