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
    StoredTensor,
)

# Numbers of the types in plugin_src/cpu/linear.h.
TYPES: Mapping[DType, int] = MappingProxyType(
    {DType.INT4: 0, DType.INT8: 1, DType.FLOAT16: 2, DType.BFLOAT16: 3, DType.FLOAT32: 4}
)
NARROW = (DType.FLOAT16, DType.BFLOAT16)
_SCALES = (*NARROW, DType.FLOAT32)
# Smaller matrices of 16 bits are widened when they are loaded: their products are as fast, and they need little memory.
FEWEST_FLOATS = 1 << 16
# Fewest inputs of a block, and most by type: their rounding error has to stay small compared with that of the weights.
_SMALLEST_BLOCK = 16
_LARGEST_BLOCK: Mapping[DType, int] = MappingProxyType({DType.INT4: 128, DType.INT8: 32})
# Block size where all numbers of a row share a scale.
_BLOCK_OF_ROWS = 32


def input_block(matrix: QuantizedMatrix) -> int | None:
    """How many neighbouring inputs are rounded with one scale; None for a matrix that Linear does not read."""
    largest = _LARGEST_BLOCK.get(matrix.values.dtype)
    if largest is None or matrix.zero_points is not None or matrix.global_scale is not None:
        return None
    if matrix.scales.dtype not in _SCALES or not prod(matrix.shape):
        return None
    columns, shape = matrix.shape[1], matrix.scales.shape
    block = gcd(columns // shape[1], largest) if len(shape) == 2 else gcd(columns, _BLOCK_OF_ROWS)
    return block if block >= _SMALLEST_BLOCK else None


def library_notes(graph: SessionGraph) -> tuple[str, ...]:
    """A note for the user where Linear would be used, but its library is missing."""
    quantised = (part for weight in graph.weights if weight.form == BLOCKS for part in weight.parts)
    losses = []
    if any(isinstance(part, QuantizedMatrix) and input_block(part) for part in quantised):
        losses.append("quantised weights use ONNX Runtime's kernels, which are slower than Hybridge's")
    if any(_is_widened(weight) for weight in graph.weights):
        losses.append("weights of 16 bits are widened to float32, which takes twice the memory")
    library = cpu_library() if losses else None
    return () if library is None or library.path is not None else (f"{'; '.join(losses)}: {library.reason}",)


def _is_widened(weight: GraphWeight) -> bool:
    """Whether ``weight`` is a large 16-bit matrix in memory as float32."""
    part = weight.parts[0]
    if not weight.shared or weight.form != WHOLE or not isinstance(part, StoredTensor):
        return False
    return part.dtype in NARROW and len(part.shape) == 2 and prod(part.shape) >= FEWEST_FLOATS
