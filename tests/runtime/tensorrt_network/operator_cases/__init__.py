"""Random calls of every ONNX operator that exported graphs hold."""

from __future__ import annotations

from tests.runtime.tensorrt_network.operator_cases import (
    elementwise,
    indexing,
    loops,
    products,
    quantised,
    reductions,
    shapes,
    slices,
)
from tests.runtime.tensorrt_network.operator_cases.draw import Case

CASES: dict[str, Case] = {
    **elementwise.CASES,
    **shapes.CASES,
    **slices.CASES,
    **indexing.CASES,
    **reductions.CASES,
    **products.CASES,
    **loops.CASES,
    **quantised.CASES,
}
