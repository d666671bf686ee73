"""A weight as the operators Linear and RoutedExperts read it: their inputs and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.linear_form import NARROW, TYPES, input_block, is_stored_e4m3
from hybridge.runtime.engines.onnxruntime.linear_tiles import TILE_ROWS, columns_per_scale, scale_dtype, tiles_shape
from hybridge.runtime.engines.onnxruntime.quantized_weights import WeightForm, formed_initializer
from hybridge.runtime.engines.onnxruntime.session_graph import (
    LINEAR,
    LINEAR_BYTES,
    LINEAR_FACTORS,
    LINEAR_SCALES,
    LINEAR_ZEROS,
    Part,
    QuantizedMatrix,
    StoredTensor,
)


@dataclass(frozen=True)
class LinearWeight:
    """The initializer ``name``: matrices of ``rows`` rows in all and ``columns``, one after another in ``parts``."""

    name: str
    parts: tuple[Part, ...]
    rows: int
    columns: int

    @property
    def is_supported(self) -> bool:
        """Whether the operators read it: all parts are of one form, and tiles have rows of one part."""
        forms = {_form(part) for part in self.parts}
        has_whole_tiles = all(part.shape[0] % TILE_ROWS == 0 for part in self.parts)
        return None not in forms and len(forms) == 1 and (len(self.parts) == 1 or not self.is_tiled or has_whole_tiles)

    @property
    def _matrix(self) -> QuantizedMatrix | None:
        """The first part, where the numbers have scales."""
        return self.parts[0] if isinstance(self.parts[0], QuantizedMatrix) else None

    @property
    def is_tiled(self) -> bool:
        """Whether the operators read it in tiles."""
        return self._matrix is not None and not is_stored_e4m3(self._matrix)

    def attributes(self, exact: bool) -> Mapping[str, int]:
        """The operators' attributes; exact: inputs are not rounded."""
        matrix = self._matrix
        if matrix is None:
            assert isinstance(self.parts[0], StoredTensor)
            return _attributes(self.parts[0].dtype, DType.FLOAT32, 0, 0, True)
        group, block = columns_per_scale(matrix), input_block(matrix)
        if block is None:
            return _attributes(matrix.values.dtype, DType.FLOAT32, group, 0, True)
        return _attributes(matrix.values.dtype, scale_dtype(matrix), group, block, exact)

    def inputs(self, graph: ir.Graph) -> tuple[ir.Value, ir.Value | None, ir.Value | None]:
        """Initializers of ``graph``: the numbers, their scales and their zero points; None without."""
        matrix = self._matrix
        if matrix is None or not self.is_tiled:
            stored = tuple(_bytes(part.values if isinstance(part, QuantizedMatrix) else part) for part in self.parts)
            numbers = self._input(graph, LINEAR_BYTES, (self.rows, stored[0].shape[1]), stored, ir.DataType.UINT8)
            if matrix is None:
                return numbers, None, None
            groups = self.columns // columns_per_scale(matrix)
            return numbers, self._input(graph, LINEAR_SCALES, (self.rows, groups)), None
        tiles = -(-self.rows // TILE_ROWS)
        numbers = self._input(graph, LINEAR, (tiles, tiles_shape(matrix)[1]), self.parts, ir.DataType.UINT8)
        scales = None if matrix.global_scale is None else self._input(graph, LINEAR_FACTORS, (self.rows, 1))
        zeros_shape = (tiles, self.columns // columns_per_scale(matrix) * TILE_ROWS)
        if matrix.zero_points is None:
            return numbers, scales, None
        return numbers, scales, self._input(graph, LINEAR_ZEROS, zeros_shape, dtype=ir.DataType.INT8)

    def _input(
        self,
        graph: ir.Graph,
        form: str,
        shape: tuple[int, int],
        parts: tuple[Part, ...] = (),
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        return formed_initializer(graph, f"{self.name}.{form}", WeightForm(parts or self.parts, form), shape, dtype)


def _form(part: Part) -> tuple[object, ...] | None:
    """What the parts of one weight have in common; None for a part that the operators do not read."""
    if isinstance(part, StoredTensor):
        return (part.dtype,) if part.dtype in NARROW and len(part.shape) > 1 else None
    if not is_stored_e4m3(part) and input_block(part) is None:
        return None
    has = (part.global_scale is None, part.zero_points is None)
    return (part.values.dtype, part.scales.dtype, columns_per_scale(part), input_block(part), *has)


def _bytes(tensor: StoredTensor) -> StoredTensor:
    """The bytes [rows, n] of the matrices in ``tensor`` [..., columns]."""
    shape = (prod(tensor.shape[:-1]), tensor.dtype.nbytes(tensor.shape[-1]))
    return replace(tensor, dtype=DType.UINT8, shape=shape)


def _attributes(dtype: DType, scales: DType, group: int, block: int, exact: bool) -> Mapping[str, int]:
    return {"type": TYPES[dtype], "scale_type": TYPES[scales], "group": group, "block": block, "exact": int(exact)}
