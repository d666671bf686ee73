"""Attention nodes in the form that TensorRT builds for every type and head size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import onnx
import onnx.inliner
from onnx import helper, numpy_helper

from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.trt_plugins.build.plain_attention import last_loop, plain_attention
from hybridge.trt_plugins.call_check import TensorType
from hybridge.trt_plugins.catalog import DOMAIN, OVER_CACHES
from hybridge.trt_plugins.value_types import value_types

STANDARD_DOMAINS = ("", "ai.onnx")
# An attribute of TensorRT's parser: where no fused kernel has the type or head size, run single operations.
DECOMPOSABLE_ATTRIBUTE = "TRT_decomposable"
# TensorRT's 16-bit matrix products need this many elements in a row; it fails inside on other head sizes.
HEAD_SIZE_MULTIPLE = 8
_TENSORS = 3  # query, key, value


def native_attention(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with the bodies of the operators over KV caches in their place: TensorRT has layers for these.

    ArtifactError for a body that is not made of standard operators, or that does not fit its nodes.
    """
    names = [(DOMAIN, spec.name) for spec in OVER_CACHES]
    for function in model.functions:
        if (function.domain, function.name) in names:
            foreign = {node.domain for node in _all_nodes(function.node)} - set(STANDARD_DOMAINS)
            if foreign:
                raise _unfit(f"operators of {min(foreign)} in {function.name}")
    try:
        return onnx.inliner.inline_selected_functions(model, names)
    except Exception as error:  # onnx raises several kinds for a body that contradicts itself
        raise _unfit(str(error)) from error


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from _all_nodes(attribute.g.node)


def _unfit(found: str) -> ArtifactError:
    return ArtifactError(
        f"{MODEL_FILE}: expected functions of standard operators for attention, found {found}: export the checkpoint "
        "again"
    )


def support_attention(model: onnx.ModelProto) -> None:
    """Rewrite the Attention nodes [batch, heads, seq, head_size] of the main graph, in place.

    All may be decomposed. Those in 16 bits whose head size is not a multiple of 8 get zeros up to the next one, which
    change neither the scores nor the result. Those in front of a loop become single operators (plain_attention.py).
    """
    types, loop = value_types(model), last_loop(model)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for index, node in enumerate(nodes):
        if node.op_type != "Attention" or node.domain not in STANDARD_DOMAINS:
            model.graph.node.append(node)
            continue
        query, key = (types.get(name) for name in node.input[:2])
        size = _odd_head_size(key)
        parts = [node] if size is None else _padded(node, size, model.graph)
        at = next(i for i, part in enumerate(parts) if part is node)
        if index < loop and query is not None and key is not None:
            parts[at : at + 1] = _plain(node, query, key)
        else:
            node.attribute.append(helper.make_attribute(DECOMPOSABLE_ATTRIBUTE, 1))
        model.graph.node.extend(parts)


def _plain(node: onnx.NodeProto, query: TensorType, key: TensorType) -> list[onnx.NodeProto]:
    """``node``, whose query and key had these types before they were padded, as single operators."""
    heads, kv_heads, head_size = query.shape[1], key.shape[1], key.shape[-1]
    assert isinstance(heads, int) and isinstance(kv_heads, int) and isinstance(head_size, int)
    if all(attribute.name != "scale" for attribute in node.attribute):
        node.attribute.append(helper.make_attribute("scale", 1.0 / math.sqrt(head_size)))
    width = head_size if _odd_head_size(key) is None else head_size + -head_size % HEAD_SIZE_MULTIPLE
    return plain_attention(node, heads, kv_heads, width, key.dtype.onnx)


def _odd_head_size(key: TensorType | None) -> int | None:
    if key is None or not key.dtype.is_floating or key.dtype.itemsize != 2:
        return None
    size = key.shape[-1]
    return size if isinstance(size, int) and size % HEAD_SIZE_MULTIPLE else None


def _padded(node: onnx.NodeProto, head_size: int, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The node between zeros appended to query, key and value, and the cut of its output."""
    output, wide = node.output[0], f"{node.output[0]}.padded"
    surplus = -head_size % HEAD_SIZE_MULTIPLE
    for name, values in (("pads", [0, surplus]), ("axis", [3]), ("start", [0]), ("end", [head_size])):
        graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), f"{wide}.{name}"))
    pads = []
    for index in range(_TENSORS):
        inputs = [node.input[index], f"{wide}.pads", "", f"{wide}.axis"]
        node.input[index] = f"{wide}.{index}"
        pads.append(helper.make_node("Pad", inputs, [node.input[index]], name=f"{wide}.{index}.pad"))
    if all(attribute.name != "scale" for attribute in node.attribute):
        node.attribute.append(helper.make_attribute("scale", 1.0 / math.sqrt(head_size)))
    node.output[0] = wide
    cut = [wide, f"{wide}.start", f"{wide}.end", f"{wide}.axis"]
    return [*pads, node, helper.make_node("Slice", cut, [output], name=f"{wide}.cut")]
