"""The nodes of an ONNX function that is being built."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hybridge.trt_plugins.functions.signature import Signature

OPSET = 24
FLOAT = onnx.TensorProto.FLOAT
# An ONNX type and a number of axes; None: any number.
Kind = tuple[int, int | None]
TO_END = int(np.iinfo(np.int64).max)
"""End of a slice that goes to the end of its axis."""


class Nodes:
    """Nodes of one function in the order they are added; methods take and return names of values."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._nodes: list[onnx.NodeProto] = []
        self._known: dict[tuple, str] = {}
        self._names = itertools.count()

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of the standard domain, or reuse an equal one; returns its output."""
        key = (op_type, inputs, repr(sorted(attributes.items())))
        if key not in self._known:
            self._known[key] = self._add(op_type, inputs, 1, attributes)[0]
        return self._known[key]

    def split(self, tensor: str, parts: int, axis: int) -> list[str]:
        """``tensor`` in ``parts`` equal pieces along ``axis``."""
        return self._add("Split", (tensor,), parts, {"axis": axis, "num_outputs": parts})

    def constant(self, value: Any, dtype: type = np.int64) -> str:
        """A constant tensor; equal constants share one node."""
        return self.array(np.array(value, dtype=dtype))

    def array(self, value: np.ndarray) -> str:
        """A constant tensor of the array's own type."""
        array = np.asarray(value)
        key = ("Constant", array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = self._add("Constant", (), 1, {"value": numpy_helper.from_array(array)})[0]
        return self._known[key]

    def attribute(self, name: str) -> str:
        """The node's own value of attribute ``name``, a scalar: one body serves nodes that differ in it."""
        kind = next(a.kind for a in self.signature.spec.attributes if a.name == name)
        if (name,) not in self._known:
            field, stem = ("value_int" if kind == "int" else "value_float"), f"attribute_{name}"
            kind_type = onnx.AttributeProto.INT if kind == "int" else onnx.AttributeProto.FLOAT
            node = helper.make_node("Constant", [], [stem], name=stem)
            node.attribute.append(_reference(field, name, kind_type))
            self._nodes.append(node)
            self._known[name,] = stem
        return self._known[name,]

    def float32(self, value: float) -> str:
        return self.constant(value, np.float32)

    def result(
        self, name: str, op_type: str, *inputs: str, own_attributes: Sequence[str] = (), **attributes: Any
    ) -> None:
        """Add a node that computes output ``name`` itself; its ``own_attributes`` are those of the function's node."""
        node = helper.make_node(op_type, inputs, [name], name=name, **attributes)
        for attribute in own_attributes:
            node.attribute.append(_reference(attribute, attribute, onnx.AttributeProto.FLOAT))
        self._nodes.append(node)

    def output(self, value: str, name: str) -> None:
        """``value`` becomes output ``name`` as it is."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))

    def size(self, tensor: str, first: int, last: int | None = None) -> str:
        """Sizes of axes first..last-1 (one axis by default) as a one-dimensional int64 tensor."""
        return self.op("Shape", tensor, start=first, end=first + 1 if last is None else last)

    def concat(self, *parts: str, axis: int = 0) -> str:
        return self.op("Concat", *parts, axis=axis)

    def reshape(self, tensor: str, *shape: str) -> str:
        """``tensor`` reshaped to the concatenated parts; 0 is a size, not a placeholder."""
        return self.op("Reshape", tensor, shape[0] if len(shape) == 1 else self.concat(*shape), allowzero=1)

    def unsqueeze(self, tensor: str, *axes: int) -> str:
        return self.op("Unsqueeze", tensor, self.constant(axes))

    def slice(self, tensor: str, axis: int, start: str, end: str) -> str:
        """tensor[start:end] along ``axis``; the bounds are int64 tensors of one element."""
        return self.op("Slice", tensor, start, end, self.constant([axis]))

    def ceil_div(self, dividend: str, divisor: str) -> str:
        """The integer quotient, rounded up."""
        return self.op("Div", self.op("Sub", self.op("Add", dividend, divisor), self.constant([1])), divisor)

    def range(self, count: str) -> str:
        """0..count-1, ``count`` an int64 tensor of one element."""
        return self.op("Range", self.constant(0), self.op("Squeeze", count), self.constant(1))

    def scan(
        self, step: Callable[[str, list[str]], tuple[str, str]], carried: str, slices: Sequence[str], rank: int
    ) -> tuple[str, str]:
        """``step`` over axis 0 of ``slices``: (carried, slices at i) to (next carried, result at i), all float32.

        Returns the last carried value and the results, stacked on axis 0. ``step`` may use values from outside. Inside
        it every value has ``rank`` axes, which ONNX Runtime before 1.24 needs.
        """
        graph = self._graph(lambda inner: step(inner[0], inner[1:]), [(FLOAT, rank)] * (1 + len(slices)), (rank, rank))
        last, results = self._add("Scan", (carried, *slices), 2, {"body": graph, "num_scan_inputs": len(slices)})
        return last, results

    def map_slices(
        self, step: Callable[[list[str]], str], slices: Sequence[str], kinds: Sequence[Kind], rank: int
    ) -> str:
        """``step`` of every index of axis 0 of ``slices``: float32 results of ``rank`` axes, stacked on axis 0.

        ``kinds``: type and number of axes of each slice inside of ``step``, which may use values from outside.
        """
        # TensorRT's parser refuses a Scan that carries nothing.
        carried = self.float32(0.0)
        results = (0, rank)
        graph = self._graph(
            lambda inner: (self.op("Identity", inner[0]), step(inner[1:])), [(FLOAT, 0), *kinds], results
        )
        return self._add("Scan", (carried, *slices), 2, {"body": graph, "num_scan_inputs": len(slices)})[1]

    def _graph(
        self, step: Callable[[list[str]], Sequence[str]], kinds: Sequence[Kind], ranks: Sequence[int | None]
    ) -> onnx.GraphProto:
        """The nodes that ``step`` adds, given inputs of ``kinds``, as a graph with float32 outputs of ``ranks``."""
        nodes, known = self._nodes, self._known
        self._nodes, self._known = [], dict(known)
        inner = [f"scan_{next(self._names)}" for _ in kinds]
        outputs = step(inner)
        inputs = [_value(name, *kind) for name, kind in zip(inner, kinds, strict=True)]
        float32 = [_value(name, FLOAT, rank) for name, rank in zip(outputs, ranks, strict=True)]
        graph = helper.make_graph(self._nodes, "step", inputs, float32)
        self._nodes, self._known = nodes, known
        return graph

    def function(self) -> onnx.FunctionProto:
        """The finished function; its attributes default to the values for which it is specialised."""
        spec = self.signature.spec
        return helper.make_function(
            spec.domain,
            spec.name,
            [tensor.name for tensor in spec.inputs if self.signature.has(tensor.name)],
            [tensor.name for tensor in spec.outputs],
            self._nodes,
            opset_imports=[helper.make_opsetid("", OPSET)],
            attribute_protos=[helper.make_attribute(name, value) for name, value in self.signature.attributes],
            doc_string=spec.doc,
        )

    def _add(self, op_type: str, inputs: tuple[str, ...], outputs: int, attributes: dict[str, Any]) -> list[str]:
        stem = f"{op_type.lower()}_{next(self._names)}"
        names = [stem] if outputs == 1 else [f"{stem}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op_type, list(inputs), names, name=stem, **attributes))
        return names


def _reference(name: str, source: str, kind: onnx.AttributeProto.AttributeType) -> onnx.AttributeProto:
    """Attribute ``name`` of a node, which has the value of the function's attribute ``source``."""
    return onnx.AttributeProto(name=name, ref_attr_name=source, type=kind)


def _value(name: str, dtype: int, rank: int | None) -> onnx.ValueInfoProto:
    """A value of ``rank`` axes of any size; None: of any rank."""
    return helper.make_tensor_value_info(name, dtype, None if rank is None else [None] * rank)
