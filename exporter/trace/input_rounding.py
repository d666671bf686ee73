"""Rounded inputs of products in the graph, in standard operators that every engine has.

An input is divided by its scales, rounded by QuantizeLinear and DequantizeLinear, and multiplied by them again, all in
float32. Products that round an input in the same way share the rounded input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.weights.quantized import PlacedRounding

# The largest number of each type.
_LARGEST: Mapping[DType, float] = MappingProxyType(
    {DType.INT8: 127.0, DType.FLOAT8E4M3FN: 448.0, DType.FLOAT4E2M1: 6.0}
)
# The smallest divisor, for features that are all zero.
_LEAST_SCALE = 1e-30
Initializer = Callable[[str, TensorSlot], ir.Value]


@dataclass(frozen=True)
class _Key:
    x: ir.Value
    dtype: DType
    group: int | None
    scale: tuple[object, ...] | None


class RoundedInputs:
    """Makes products of ``graph`` read rounded inputs. ``initializer`` registers a stored tensor under a name."""

    def __init__(self, graph: ir.Graph, initializer: Initializer) -> None:
        self._graph, self._initializer = graph, initializer
        self._rounded_inputs: dict[_Key, ir.Value] = {}
        self._constants: dict[object, ir.Value] = {}

    def apply(self, weight: ir.Value, name: str, rounding: PlacedRounding) -> None:
        """Round the inputs of all products by the transpose of ``weight``, which is called ``name``."""
        for node, _ in tuple(weight.uses()):
            products = [user for user, _ in node.outputs[0].uses()] if node.op_type == "Transpose" else []
            for product in products:
                x = product.inputs[0]
                if product.op_type == "MatMul" and not product.domain and x is not None:
                    product.replace_input_with(0, self._rounded(x, name, rounding))

    def _rounded(self, x: ir.Value, name: str, rounding: PlacedRounding) -> ir.Value:
        slot = rounding.scale
        key = _Key(x, rounding.dtype, rounding.group, None if slot is None else (slot.path, slot.offset))
        if key not in self._rounded_inputs:
            self._rounded_inputs[key] = self._round(x, name, rounding)
        return self._rounded_inputs[key]

    def _round(self, x: ir.Value, name: str, rounding: PlacedRounding) -> ir.Value:
        chain = _Chain(
            self._graph, x, f"{name.removesuffix('.weight')}.input.{len(self._rounded_inputs)}", self._constant
        )
        wide = chain.cast(x, ir.DataType.FLOAT)
        if rounding.group:
            wide = chain.groups(wide, rounding.group)
        scale = None
        if rounding.scale is not None:
            stored = f"{name.removesuffix('weight')}input_scale"
            value = self._graph.initializers.get(stored) or self._initializer(stored, rounding.scale)
            scale = chain.cast(value, ir.DataType.FLOAT)
        if rounding.dtype is DType.FLOAT4E2M1:
            assert scale is not None
            result = chain.e2m1(wide, scale)
        elif scale is not None:
            result = chain.quantized(wide, scale, rounding.dtype)
        else:
            result = chain.dynamic(wide, rounding.dtype)
        if rounding.group:
            result = chain.joined(result)
        assert x.dtype is not None
        result = chain.cast(result, x.dtype)
        chain.insert()
        return result

    def _constant(self, value: float | tuple[int, ...]) -> ir.Value:
        if value not in self._constants:
            kind = {"value_float": value} if isinstance(value, float) else {"value_ints": list(value)}
            node = ir.node("Constant", [], kind)
            output = node.outputs[0]
            output.name = f"input_rounding.{value}".replace(" ", "")
            output.shape = ir.Shape(() if isinstance(value, float) else (len(value),))
            output.type = ir.TensorType(ir.DataType.FLOAT if isinstance(value, float) else ir.DataType.INT64)
            self._graph.insert_before(self._graph[0], node)
            self._constants[value] = output
        return self._constants[value]


class _Chain:
    """The nodes that round one value; ``insert`` puts them into the graph."""

    def __init__(
        self, graph: ir.Graph, x: ir.Value, prefix: str, constant: Callable[[float | tuple[int, ...]], ir.Value]
    ) -> None:
        assert x.shape is not None
        self._graph, self._x, self._prefix, self._constant = graph, x, prefix, constant
        self._dims = tuple(x.shape.dims)
        self._rank = len(self._dims)
        self._nodes: list[ir.Node] = []

    def insert(self) -> None:
        """Insert the nodes after the one that computes the value."""
        producer = self._x.producer()
        if producer is None:
            self._graph.insert_before(self._graph[0], self._nodes)
        else:
            self._graph.insert_after(producer, self._nodes)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """``value`` in another type."""
        if value.dtype == dtype:
            return value
        return self._op("Cast", value, dims=value.shape, dtype=dtype, to=dtype)

    def groups(self, value: ir.Value, group: int) -> ir.Value:
        """[..., columns] as [..., columns / group, group]."""
        columns = self._dims[-1]
        assert isinstance(columns, int)
        sizes = (columns // group, group)
        self._dims = (*self._dims[:-1], *sizes)
        return self._reshape(value, (*(0 for _ in range(self._rank - 1)), *sizes))

    def joined(self, value: ir.Value) -> ir.Value:
        """[..., columns / group, group] as [..., columns]."""
        count, group = self._dims[-2:]
        assert isinstance(count, int) and isinstance(group, int)
        self._dims = (*self._dims[:-2], count * group)
        return self._reshape(value, (*(0 for _ in range(self._rank - 1)), count * group))

    def quantized(self, value: ir.Value, scale: ir.Value, dtype: DType, dims: ir.Shape | None = None) -> ir.Value:
        """``value`` rounded to numbers of ``dtype`` times ``scale``."""
        kind = ir.DataType(dtype.onnx)
        numbers = self._op("QuantizeLinear", value, scale, dims=dims, dtype=kind, output_dtype=kind)
        return self._op("DequantizeLinear", numbers, scale, dims=dims)

    def dynamic(self, value: ir.Value, dtype: DType) -> ir.Value:
        """``value`` rounded to numbers of ``dtype`` times the scale of its last axis."""
        scale = self._op("Div", self._largest(value), self._constant(_LARGEST[dtype]), dims=self._scale_shape())
        scale = self._op("Max", scale, self._constant(_LEAST_SCALE), dims=self._scale_shape())
        numbers = self.quantized(self._op("Div", value, scale), self._constant(1.0), dtype)
        return self._op("Mul", numbers, scale)

    def e2m1(self, value: ir.Value, global_scale: ir.Value) -> ir.Value:
        """``value`` rounded to e2m1 numbers times the scale of its last axis, an e4m3 number times ``global_scale``.

        It takes float32 operators, as not every engine has the type: e2m1 numbers below 2 are multiples of 1/2, those
        below 4 of 1, others of 2.
        """
        scale = self._op(
            "Div", self._largest(value), self._constant(_LARGEST[DType.FLOAT4E2M1]), dims=self._scale_shape()
        )
        scale = self.quantized(scale, global_scale, DType.FLOAT8E4M3FN, self._scale_shape())
        divisor = self._op("Max", scale, self._constant(_LEAST_SCALE), dims=self._scale_shape())
        numbers = self._op("Div", value, divisor)
        size = self._op("Abs", numbers)
        step = self._where(size, 4.0, self._constant(2.0), self._constant(1.0))
        step = self._where(size, 2.0, step, self._constant(0.5))
        numbers = self._op("Mul", self._op("Round", self._op("Div", numbers, step)), step)
        numbers = self._op("Clip", numbers, self._constant(-6.0), self._constant(6.0))
        return self._op("Mul", numbers, scale)

    def _where(self, size: ir.Value, bound: float, above: ir.Value, below: ir.Value) -> ir.Value:
        """``below`` where ``size`` is less than ``bound``, else ``above``."""
        is_less = self._op("Less", size, self._constant(bound), dtype=ir.DataType.BOOL)
        return self._op("Where", is_less, below, above)

    def _largest(self, value: ir.Value) -> ir.Value:
        """The largest magnitude along the last axis, [..., 1]."""
        return self._op(
            "ReduceMax", self._op("Abs", value), self._constant((-1,)), dims=self._scale_shape(), keepdims=1
        )

    def _scale_shape(self) -> ir.Shape:
        return ir.Shape((*self._dims[:-1], 1))

    def _reshape(self, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        return self._op("Reshape", value, self._constant(shape))

    def _op(
        self,
        op_type: str,
        *inputs: ir.Value,
        dims: ir.Shape | None = None,
        dtype: ir.DataType = ir.DataType.FLOAT,
        **attributes: int,
    ) -> ir.Value:
        node = ir.node(op_type, list(inputs), attributes or None)
        output = node.outputs[0]
        output.name = f"{self._prefix}.{len(self._nodes)}"
        output.shape = ir.Shape(self._dims) if dims is None else dims
        output.type = ir.TensorType(dtype)
        self._nodes.append(node)
        return output
