"""Scales of a checkpoint for FP8 keys and values, in the graph, in standard operators that every engine has.

Keys and values are divided by their factors before they are cached; scores and the output of attention are multiplied
by them. So a cached number is rounded as the checkpoint's scale says, and attention computes the same as without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from hybridge.artifact import names
from hybridge.exporter.checkpoint.quantized.cache_scales import CacheFactors
from hybridge.trt_plugins.catalog import DOMAIN

_WRITE, _READ = "reshape_and_cache_fp8", "paged_attention_fp8"
# Inputs of the two operators.
_KEY, _VALUE, _POOL = 0, 1, 2
_QUERY = 0
_SCALE = "scale"
_HEADS_AXIS, _SIZE_AXIS = 1, 2


def apply_cache_factors(graph: ir.Graph, factors: Sequence[CacheFactors | None]) -> None:
    """Apply ``factors``, those of each attention layer in order, to the operators over pools of e4m3."""
    layers = {names.kv_pool(k): (f"cache_factors.{k}", own) for k, own in enumerate(factors) if own is not None}
    for node in tuple(graph):
        pool = node.inputs[_POOL] if (node.domain, node.op_type) == (DOMAIN, _WRITE) else None
        if pool is not None and pool.name in layers:
            name, own = layers[pool.name]
            _divide_entries(graph, node, own, name)
            (read,) = {user for user, _ in node.outputs[0].uses() if user.op_type == _READ}
            _multiply_scores(graph, read, own.keys, f"{name}.query")
            _multiply_output(graph, read.outputs[0], own.values, f"{name}.output")


def _divide_entries(graph: ir.Graph, write: ir.Node, factors: CacheFactors, name: str) -> None:
    key, value = write.inputs[_KEY], write.inputs[_VALUE]
    assert key is not None and value is not None
    divided = _scaled(graph, key, "Div", factors.keys, f"{name}.key")
    write.replace_input_with(_KEY, divided)
    if value is not key:  # keys of latent attention are its values
        divided = _scaled(graph, value, "Div", factors.values, f"{name}.value")
    write.replace_input_with(_VALUE, divided)


def _multiply_scores(graph: ir.Graph, read: ir.Node, factors: np.ndarray, name: str) -> None:
    query = read.inputs[_QUERY]
    assert query is not None
    if len(factors) == 1:
        scale = read.attributes[_SCALE].as_float() or 1 / math.sqrt(_size(query, _SIZE_AXIS))
        read.attributes[_SCALE] = ir.AttrFloat32(_SCALE, scale * float(factors[0]))
    else:
        read.replace_input_with(_QUERY, _scaled(graph, query, "Mul", factors, name))


def _multiply_output(graph: ir.Graph, output: ir.Value, factors: np.ndarray, name: str) -> None:
    users = tuple(output.uses())
    scaled = _scaled(graph, output, "Mul", factors, name)
    for user, index in users:
        user.replace_input_with(index, scaled)


def _scaled(graph: ir.Graph, x: ir.Value, op: str, factors: np.ndarray, name: str) -> ir.Value:
    """``x`` [tokens, heads, size] times or by ``factors``, [1] or [KV heads], computed in float32."""
    if (factors == 1).all():
        return x
    producer = x.producer()
    assert producer is not None and x.dtype is not None
    by_head = np.repeat(factors, _size(x, _HEADS_AXIS) // len(factors)) if len(factors) > 1 else factors
    nodes: list[ir.Node] = []

    def add(op_type: str, inputs: list[ir.Value], dtype: ir.DataType, suffix: str, **attributes: object) -> ir.Value:
        node = ir.node(op_type, inputs, attributes)  # type: ignore[arg-type]
        result = node.outputs[0]
        result.name, result.shape, result.type = f"{name}{suffix}", x.shape, ir.TensorType(dtype)
        nodes.append(node)
        return result

    constant = add("Constant", [], ir.DataType.FLOAT, ".factors", value=ir.tensor(by_head[:, None].astype(np.float32)))
    constant.shape = ir.Shape([len(by_head), 1])
    narrow = x.dtype != ir.DataType.FLOAT
    wide = add("Cast", [x], ir.DataType.FLOAT, ".wide", to=ir.DataType.FLOAT) if narrow else x
    found = add(op, [wide, constant], ir.DataType.FLOAT, ".scaled")
    if narrow:
        found = add("Cast", [found], x.dtype, "", to=x.dtype)
    graph.insert_after(producer, nodes)
    return found


def _size(x: ir.Value, axis: int) -> int:
    assert x.shape is not None
    size = x.shape[axis]
    assert isinstance(size, int)
    return size
