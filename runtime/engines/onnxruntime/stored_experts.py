"""Routed experts by the operator RoutedExperts, which reads matrices of 4, 8 and 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes, replace_node
from hybridge.runtime.engines.onnxruntime.joined_weights import joined_weight, part_of
from hybridge.runtime.engines.onnxruntime.linear_form import NARROW, TYPES, input_block, is_stored_e4m3
from hybridge.runtime.engines.onnxruntime.linear_tiles import TILE_ROWS, columns_per_scale, scale_dtype, tiles_shape
from hybridge.runtime.engines.onnxruntime.quantized_weights import WeightForm, formed_initializer, remove_unused
from hybridge.runtime.engines.onnxruntime.session_graph import (
    LINEAR,
    LINEAR_BYTES,
    LINEAR_FACTORS,
    LINEAR_SCALES,
    Part,
    QuantizedMatrix,
    StoredTensor,
)
from hybridge.trt_plugins.catalog import DOMAIN, spec_of
from hybridge.trt_plugins.specs.routed_experts import ExpertActivation

OPERATOR = "RoutedExperts"
# Numbers of the activations in plugin_src/cpu/experts.h.
_ACTIVATIONS: Mapping[str, int] = MappingProxyType({"silu": 0, "relu": 1, "relu2": 2})


def use_stored_experts(model: ir.Model, exact: bool) -> None:
    """Replace routed_experts over matrices that RoutedExperts reads; exact: do not round inputs.

    Otherwise rounded_experts too. Nothing is replaced where the library cannot be compiled.
    """
    operators = ("routed_experts",) if exact else ("routed_experts", "rounded_experts")
    for node in list(model.graph):
        if node.domain != DOMAIN or node.op_type not in operators:
            continue
        form = ExpertActivation.of(op_attributes(node))
        up, down = (_Experts.of(value) for value in node.inputs[3:5])
        if up is None or down is None or form.name not in _ACTIVATIONS or cpu_library().path is None:
            continue
        biases = [*node.inputs[spec_of(node.op_type).input_index("up_bias") :]]
        attributes: dict[str, Any] = {
            **{f"up_{name}": value for name, value in up.attributes(exact).items()},
            **{f"down_{name}": value for name, value in down.attributes(exact).items()},
            **{"experts": up.shape[0], "size": down.shape[2], "instructions": 0},
            **{"activation": _ACTIVATIONS[form.name], "gated": int(form.gated)},
            **{"alpha": form.alpha, "limit": form.limit, "offset": form.offset},
        }
        inputs = [*node.inputs[:3], *up.inputs(model.graph), *down.inputs(model.graph), *biases]
        y = Inserter(model.graph, node).op(OPERATOR, *inputs, domain=CPU_DOMAIN, **attributes)
        weights = node.inputs[3:5]
        replace_node(node, [y])
        for weight in weights:
            assert weight is not None
            remove_unused(model.graph, weight)


@dataclass(frozen=True)
class _Experts:
    """A weight ``shape`` [experts, rows, columns] whose ``parts`` follow each other, all of one form."""

    name: str
    parts: tuple[Part, ...]
    shape: tuple[int, int, int]

    @classmethod
    def of(cls, value: ir.Value | None) -> _Experts | None:
        """The weight ``value``; None where the operator does not read it."""
        shape, joined = fixed_shape(value), None if value is None else joined_weight(value)
        if value is None or shape is None or len(shape) != 3 or not all(shape):
            return None
        if joined is None and not isinstance(value.const_value, ir.ExternalTensor):
            return None
        parts = (part_of(value),) if joined is None else joined.parts
        experts, rows, columns = (size or 0 for size in shape)
        forms = {_form(part) for part in parts}
        if None in forms or len(forms) != 1 or (joined is not None and joined.interleaved):
            return None
        return cls(str(value.name), parts, (experts, rows, columns))

    @property
    def _matrix(self) -> QuantizedMatrix | None:
        """The first part, where the numbers have scales."""
        return self.parts[0] if isinstance(self.parts[0], QuantizedMatrix) else None

    def attributes(self, exact: bool) -> dict[str, int]:
        """Those of the weight in the operator."""
        matrix = self._matrix
        if matrix is None:
            assert isinstance(self.parts[0], StoredTensor)
            return _attributes(self.parts[0].dtype, DType.FLOAT32, 0, 0, True)
        group, block = columns_per_scale(matrix), input_block(matrix)
        if block is None:
            return _attributes(matrix.values.dtype, DType.FLOAT32, group, 0, True)
        return _attributes(matrix.values.dtype, scale_dtype(matrix), group, block, exact)

    def inputs(self, graph: ir.Graph) -> tuple[ir.Value, ir.Value | None]:
        """The matrices of all experts and their scales, None without."""
        matrix, rows = self._matrix, self.shape[0] * self.shape[1]
        if matrix is None or is_stored_e4m3(matrix):
            stored = tuple(_bytes(part.values if isinstance(part, QuantizedMatrix) else part) for part in self.parts)
            numbers = self._input(graph, LINEAR_BYTES, stored, (rows, stored[0].shape[1]), ir.DataType.UINT8)
            groups = 0 if matrix is None else self.shape[2] // columns_per_scale(matrix)
            form, shape = LINEAR_SCALES, (rows, groups)
        else:
            tiles = (rows // TILE_ROWS, tiles_shape(matrix)[1])
            numbers = self._input(graph, LINEAR, self.parts, tiles, ir.DataType.UINT8)
            form, shape = LINEAR_FACTORS, (rows, 0 if matrix.global_scale is None else 1)
        return numbers, self._input(graph, form, self.parts, shape, ir.DataType.FLOAT) if shape[1] else None

    def _input(
        self, graph: ir.Graph, form: str, parts: tuple[Part, ...], shape: tuple[int, int], dtype: ir.DataType
    ) -> ir.Value:
        return formed_initializer(graph, f"{self.name}.{form}", WeightForm(parts, form), shape, dtype)


def _form(part: Part) -> tuple[object, ...] | None:
    """What the parts of one weight have in common; None for a part that the operator does not read."""
    if isinstance(part, StoredTensor):
        return (part.dtype,) if part.dtype in NARROW else None
    form = (part.values.dtype, part.scales.dtype, columns_per_scale(part), part.global_scale is None)
    if is_stored_e4m3(part):
        return form
    # A tile has rows of one part.
    is_tiled = input_block(part) and part.zero_points is None and part.shape[0] % TILE_ROWS == 0
    return (*form, input_block(part)) if is_tiled else None


def _bytes(tensor: StoredTensor) -> StoredTensor:
    """The bytes [rows, n] of the matrices in ``tensor`` [..., columns]."""
    shape = (prod(tensor.shape[:-1]), tensor.dtype.nbytes(tensor.shape[-1]))
    return replace(tensor, dtype=DType.UINT8, shape=shape)


def _attributes(dtype: DType, scales: DType, group: int, block: int, exact: bool) -> dict[str, int]:
    return {"type": TYPES[dtype], "scale_type": TYPES[scales], "group": group, "block": block, "exact": int(exact)}
