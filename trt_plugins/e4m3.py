"""e4m3 in operators of ONNX that know no numbers of 8 bits: bytes from float32, and back.

A byte has a sign, 4 bits of exponent and 3 of mantissa; 0x7F and 0xFF are no numbers (arXiv 2209.05433). The same nodes
serve function bodies and engines' graphs, which name values in their own ways: ``op`` adds a node and gives its output,
``constant`` an array.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import ml_dtypes
import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.kv_dtypes import E4M3_BYTES, E4M3_NAN

V = TypeVar("V")
LARGEST = 448.0
_LOWEST = -126
_SMALLEST_EXPONENT, _MANTISSA = -6, 8.0
_TABLE = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


class Nodes(Protocol[V]):
    """An object that adds nodes to a graph."""

    def op(self, op_type: str, *inputs: V, **attributes: Any) -> V: ...
    def array(self, value: np.ndarray) -> V: ...


def quantized(nodes: Nodes[V], x: V) -> tuple[V, V]:
    """``x`` [..., n] float32 as bytes like it, and its scales [...]; the eager form is reference/e4m3.py."""

    def number(value: float) -> V:
        return nodes.array(np.array(value, np.float32))

    last = nodes.array(np.array([-1], np.int64))
    largest = nodes.op("ReduceMax", nodes.op("Abs", x), last, keepdims=1)
    ratio = nodes.op("Max", nodes.op("Div", largest, number(LARGEST)), number(2.0**_LOWEST))
    scale = nodes.op("Pow", number(2.0), nodes.op("Ceil", _log2(nodes, ratio)))
    # The logarithm may be on the wrong side of a whole number; products with powers of two are exact.
    half = nodes.op("Mul", scale, number(0.5))
    enough = nodes.op("LessOrEqual", ratio, half)
    scale = nodes.op("Where", enough, half, scale)
    short = nodes.op("Greater", largest, nodes.op("Mul", scale, number(LARGEST)))
    scale = nodes.op("Where", short, nodes.op("Mul", scale, number(2.0)), scale)
    # A maximum may pass over what is not a number; zero times it, or times infinity, is none.
    zero = nodes.op("ReduceSum", nodes.op("Mul", x, number(0.0)), last, keepdims=1)
    scale = nodes.op("Where", nodes.op("IsNaN", zero), number(np.nan), scale)
    return rounded_bytes(nodes, nodes.op("Div", x, scale)), nodes.op("Squeeze", scale, last)


def _log2(nodes: Nodes[V], x: V) -> V:
    return nodes.op("Div", nodes.op("Log", x), nodes.array(np.array(np.log(2.0), np.float32)))


def floats(nodes: Nodes[V], numbers: V) -> V:
    """The float32 numbers of the bytes ``numbers``."""
    index = nodes.op("Cast", numbers, to=DType.INT32.onnx)
    return nodes.op("Gather", nodes.array(_TABLE), index, axis=0)


def rounded_bytes(nodes: Nodes[V], x: V) -> V:
    """Bytes of float32 ``x``, rounded to nearest even; what is larger than LARGEST becomes that.

    In units of the last place of its binade a number is 8 to 16, or less in the lowest one; the byte is that plus 8 for
    every binade above. A number next to a power of two comes out the same from the binade on either side.
    """

    def number(value: float) -> V:
        return nodes.array(np.array(value, np.float32))

    size = nodes.op("Min", nodes.op("Abs", x), number(LARGEST))
    log = _log2(nodes, nodes.op("Max", size, number(2.0**-9)))
    # floor(log2(x)), at most one too small or too large next to a power of two.
    binade = nodes.op("Max", nodes.op("Floor", log), number(_SMALLEST_EXPONENT))
    units = nodes.op("Mul", size, nodes.op("Pow", number(2.0), nodes.op("Sub", number(3.0), binade)))
    above = nodes.op("Mul", nodes.op("Sub", binade, number(_SMALLEST_EXPONENT)), number(_MANTISSA))
    found = nodes.op("Add", nodes.op("Round", units), above)
    found = nodes.op("Where", nodes.op("IsNaN", x), number(E4M3_NAN), found)
    sign = nodes.op("Where", nodes.op("Less", x, number(0.0)), number(128.0), number(0.0))
    whole = nodes.op("Cast", nodes.op("Add", found, sign), to=DType.INT32.onnx)
    return nodes.op("Cast", whole, to=E4M3_BYTES.onnx)
