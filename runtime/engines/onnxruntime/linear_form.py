"""The matrices that the operator Linear supports, and how it rounds its inputs. Needs no onnx_ir."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod
from types import MappingProxyType

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from hybridge.runtime.engines.onnxruntime.session_graph import (
    BLOCKS,
    WHOLE,
    GraphWeight,
    QuantizedMatrix,
    SessionGraph,
)

# Numbers of the types in plugin_src/cpu/linear.h.
TYPES: Mapping[DType, int] = MappingProxyType(
    {
        DType.INT4: 0,
        DType.INT8: 1,
        DType.FLOAT16: 2,
        DType.BFLOAT16: 3,
        DType.FLOAT32: 4,
        DType.FLOAT4E2M1: 5,
        DType.FLOAT8E4M3FN: 6,
    }
)
# Numbers of the activations in plugin_src/cpu/experts.h.
ACTIVATIONS: Mapping[str, int] = MappingProxyType({"silu": 0, "relu": 1, "relu2": 2, "gelu": 3, "gelu_pytorch_tanh": 4})
NARROW = (DType.FLOAT16, DType.BFLOAT16)
_SCALES = (*NARROW, DType.FLOAT32)
# Smaller matrices of 16 bits are widened when they are loaded: their products are as fast, and they need little memory.
FEWEST_FLOATS = 1 << 16
# Fewest inputs of a block, and most by type: their rounding error has to stay small compared with that of the weights.
_SMALLEST_BLOCK = 16
_LARGEST_BLOCK: Mapping[DType, int] = MappingProxyType({DType.INT4: 128, DType.INT8: 32, DType.FLOAT4E2M1: 128})
# Block size where all numbers of a row share a scale.
_BLOCK_OF_ROWS = 32


def input_block(matrix: QuantizedMatrix) -> int | None:
    """How many neighbouring inputs are rounded with one scale; None for a matrix that Linear does not read in tiles."""
    largest = _LARGEST_BLOCK.get(matrix.values.dtype)
    if largest is None or not prod(matrix.shape):
        return None
    if matrix.zero_points is not None and matrix.values.dtype not in (DType.INT4, DType.INT8):
        return None
    if matrix.scales.dtype not in (*_SCALES, DType.FLOAT8E4M3FN):
        return None
    columns, shape = matrix.shape[1], matrix.scales.shape
    block = gcd(columns // shape[1], largest) if len(shape) == 2 else gcd(columns, _BLOCK_OF_ROWS)
    return block if block >= _SMALLEST_BLOCK else None


def is_stored_e4m3(matrix: QuantizedMatrix) -> bool:
    """Whether Linear reads the stored e4m3 numbers of ``matrix``; their inputs are never rounded."""
    is_e4m3 = matrix.values.dtype is DType.FLOAT8E4M3FN and matrix.zero_points is None
    return is_e4m3 and matrix.scales.dtype in _SCALES and prod(matrix.shape) > 0


def library_notes(graph: SessionGraph) -> tuple[str, ...]:
    """A note for the user where Linear would be used, but its library is missing."""
    quantised = (part for weight in graph.weights if weight.form == BLOCKS for part in weight.parts)
    losses = []
    if any(isinstance(part, QuantizedMatrix) and input_block(part) for part in quantised):
        losses.append("quantised weights use ONNX Runtime's kernels, which are slower than Hybridge's")
    if any(_is_widened(weight) for weight in graph.weights):
        losses.append("large weights of 8 or 16 bits are widened to float32, which takes more memory")
    library = cpu_library() if losses else None
    return () if library is None or library.path is not None else (f"{'; '.join(losses)}: {library.reason}",)


def _is_widened(weight: GraphWeight) -> bool:
    """Whether ``weight`` is a large 16-bit or e4m3 weight in memory as float32."""
    if not weight.shared or weight.form != WHOLE or sum(prod(part.shape) for part in weight.parts) < FEWEST_FLOATS:
        return False
    part = weight.parts[0]
    if isinstance(part, QuantizedMatrix):
        return is_stored_e4m3(part)
    return part.dtype in NARROW and len(part.shape) > 1
