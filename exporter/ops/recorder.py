"""Records ONNX nodes: inside ``recording(nodes)``, ``op.MatMul(x, w)`` appends a node and returns its output.

Operands and results are onnx_ir values. A result has no type and no shape: the tracer gives these to what a torch
operator returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir

OPSET = 24

_NODES: ContextVar[list[ir.Node]] = ContextVar("nodes")
_NUMBERS: Mapping[ir.AttributeType, Callable[[Any], Any]] = {ir.AttributeType.FLOAT: float, ir.AttributeType.INT: int}


@contextmanager
def recording(nodes: list[ir.Node]) -> Iterator[None]:
    """Append what is recorded to ``nodes``."""
    token = _NODES.set(nodes)
    try:
        yield
    finally:
        _NODES.reset(token)


def record(domain: str, op_type: str, version: int, inputs: tuple[Any, ...], outputs: int, **attributes: Any) -> Any:
    """Append a node with as many ``outputs``; returns them, one alone as itself.

    inputs: values, or None for one that is left out. attributes: numbers, texts, lists of them, or onnx_ir attributes.
    """
    nodes = _NODES.get()
    node = ir.node(op_type, inputs, attributes, domain=domain, version=version, num_outputs=outputs)
    name = f"{op_type}_{len(nodes)}"
    node.name = name
    for index, value in enumerate(node.outputs):
        value.name = name if outputs == 1 else f"{name}.{index}"
    nodes.append(node)
    return node.outputs[0] if outputs == 1 else node.outputs


class Opset:
    """The operators of ONNX's standard domain: positional arguments are inputs, others attributes. Default values of
    attributes are written out."""

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        return partial(_standard, op_type)


op: Any = Opset()


def _standard(op_type: str, *inputs: Any, **attributes: Any) -> Any:
    schema = _schema(op_type)
    typed = {name: _attribute(name, schema.kinds[name], value) for name, value in attributes.items()}
    outputs = attributes.get("num_outputs", schema.outputs)
    return record("", op_type, OPSET, inputs, outputs, **{**schema.defaults, **typed})


class _Schema(NamedTuple):
    """Of an operator, the fewest outputs, the kinds of its attributes, and those with default values."""

    outputs: int
    kinds: Mapping[str, ir.AttributeType]
    defaults: Mapping[str, ir.Attr]


@cache
def _schema(op_type: str) -> _Schema:
    found = onnx.defs.get_schema(op_type, OPSET)
    kinds = {
        name: ir.AttributeType[str(attribute.type).rpartition(".")[2]] for name, attribute in found.attributes.items()
    }
    defaults = {name: ir.serde.deserialize_attribute(each.default_value) for name, each in found.attributes.items()}
    known = {name: value for name, value in defaults.items() if value.type != ir.AttributeType.UNDEFINED}
    return _Schema(found.min_output, kinds, known)


def _attribute(name: str, kind: ir.AttributeType, value: Any) -> ir.Attr:
    if isinstance(value, onnx.TensorProto):
        value = ir.serde.deserialize_tensor(value)
    return ir.Attr(name, kind, _NUMBERS[kind](value) if kind in _NUMBERS else value)
