"""Quantised weights in the graph: DequantizeLinear instead of the traced parameter."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.weights.quantized import PlacedWeight


def external_tensor(name: str, slot: TensorSlot, out: Path) -> ir.ExternalTensor:
    """The initializer ``name``, whose bytes lie in ``slot`` under the artifact's folder ``out``."""
    return ir.ExternalTensor(
        location=slot.path.relative_to(out).as_posix(),
        offset=slot.offset,
        length=slot.nbytes,
        dtype=ir.DataType(slot.dtype.onnx),
        shape=ir.Shape(slot.shape),
        name=name,
        base_dir=out,
    )


class WeightNodes:
    """Makes the nodes that compute a matrix of type ``dtype`` from a quantised weight; ``nodes``: in graph order."""

    def __init__(self, graph: ir.Graph, dtype: ir.DataType, out: Path) -> None:
        self._graph, self._dtype, self._out = graph, dtype, out
        self.nodes: list[ir.Node] = []

    def matrix(self, name: str, weight: PlacedWeight) -> ir.Value:
        """The matrix ``name`` [rows, columns] of type ``dtype``, its columns in the order of ``weight``."""
        values = self._initializer(name, weight.values)
        axes = {} if not weight.scales.shape else {"axis": 0 if weight.block is None else 1}
        if weight.block is not None:
            axes["block_size"] = weight.block
        # Matrix products with 4-bit integers need scales in their compute type. In other formats scales stay exact, and
        # only the dequantised values are rounded.
        direct = weight.values.dtype is DType.INT4
        scales = self._scales(name, weight, direct)
        zeros = [] if weight.zero_points is None else [self._initializer(f"{name}_zero_point", weight.zero_points)]
        wide = self._op("DequantizeLinear", f"{name}.wide", weight.shape, scales.dtype, values, scales, *zeros, **axes)
        result = self._cast(wide, self._dtype, f"{name}.dequantized")
        if result is wide:
            wide.name = f"{name}.dequantized"
        return result

    def tensor(self, name: str, slot: TensorSlot, cast: bool = False) -> ir.Value:
        """The tensor ``slot``; with ``cast`` in the type of the matrices."""
        value = self._initializer(name, slot)
        return self._cast(value, self._dtype, f"{name}.cast") if cast else value

    def _scales(self, name: str, weight: PlacedWeight, direct: bool) -> ir.Value:
        scales = self._initializer(f"{name}_scale", weight.scales)
        if weight.global_scale is not None:
            global_scale = self._initializer(f"{name}_global_scale", weight.global_scale)
            assert global_scale.dtype is not None
            shape, axes = weight.scales.shape, {"axis": 0} if weight.global_scale.shape else {}
            scales = self._op(
                "DequantizeLinear", f"{name}_scale.wide", shape, global_scale.dtype, scales, global_scale, **axes
            )
        exact = direct or self._dtype in (scales.dtype, ir.DataType.FLOAT)
        return self._cast(scales, self._dtype if exact else ir.DataType.FLOAT, f"{name}_scale.cast")

    def _cast(self, value: ir.Value, dtype: ir.DataType, name: str) -> ir.Value:
        if value.dtype == dtype:
            return value
        assert value.shape is not None
        return self._op("Cast", name, tuple(value.shape.numpy()), dtype, value, to=dtype)

    def _op(
        self,
        op_type: str,
        name: str,
        shape: tuple[int, ...],
        dtype: ir.DataType | None,
        *inputs: ir.Value,
        **attributes: int,
    ) -> ir.Value:
        node = ir.node(op_type, list(inputs), attributes or None)
        assert dtype is not None
        output = node.outputs[0]
        output.name, output.shape, output.type = name, ir.Shape(shape), ir.TensorType(dtype)
        self.nodes.append(node)
        return output

    def _initializer(self, name: str, slot: TensorSlot) -> ir.Value:
        return initializer(self._graph, external_tensor(name, slot, self._out))


def initializer(graph: ir.Graph, tensor: ir.ExternalTensor) -> ir.Value:
    """``tensor`` as an initializer of ``graph``, which layers may share."""
    if tensor.name in graph.initializers:
        return graph.initializers[tensor.name]
    value = ir.Value(name=tensor.name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def edit_inputs(graph: ir.Graph, weight: ir.Value, op_type: str, operand: ir.Value, **attributes: int) -> bool:
    """Insert ``op_type``(input, ``operand``) before the input of every product by the transpose of ``weight``.

    False, and no change, if other nodes read the weight too.
    """
    products = []
    for node, _ in weight.uses():
        users = [user for user, _ in node.outputs[0].uses()] if node.op_type == "Transpose" else []
        if not users or any(user.op_type != "MatMul" or user.domain for user in users):
            return False
        products += users
    for product in products:
        x = product.inputs[0]
        assert x is not None
        edit = ir.node(op_type, [x, operand], attributes or None)
        output = edit.outputs[0]
        output.name, output.shape, output.type = f"{x.name}.{operand.name}", x.shape, x.type
        graph.insert_before(product, edit)
        product.replace_input_with(0, output)
    return True
