"""Recurrent operators of decode steps over states with rings: the state is written once in many steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir
import torch

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.torch.attributes import Attributes
from hybridge.runtime.engines.torch.graph import engine_input, fuse
from hybridge.runtime.engines.torch.tensors import torch_from_dtype
from hybridge.trt_plugins.catalog import DOMAIN, spec_of
from hybridge.trt_plugins.rewrites.mamba2_mixer import Mamba2Mixer, find_mixers
from hybridge.trt_plugins.spec import AttributeValue
from hybridge.trt_plugins.specs.packed import PACKED_VERSION
from hybridge.trt_plugins.specs.ring import RINGS

STATE_RING = "StateRing"
# The attribute of such nodes besides those of the operator: its name.
OPERATOR = "operator"
RING_LENGTHS = "ring.lengths"


@dataclass(frozen=True)
class RingLayer:
    """One recurrent operator of a graph and its ring.

    pool: the graph input of its states. inputs: shape and type of each input of the packed operator with one token.
    tensors: the name, the shape for one slot and the type of each tensor of its ring.
    """

    operator: str
    attributes: dict[str, AttributeValue]
    pool: str
    inputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    tensors: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]

    @property
    def slot_bytes(self) -> int:
        """Memory of one slot's ring, without its length."""
        return sum(torch.Size(shape).numel() * dtype.itemsize for _, shape, dtype in self.tensors)


def ring_layers(graph: ir.Graph) -> Iterator[RingLayer]:
    """The operators of a packed graph whose states can have rings; EngineError if shapes are missing."""
    for node in graph:
        if node.domain == DOMAIN and node.op_type in RINGS:
            spec = spec_of(node.op_type, PACKED_VERSION)
            inputs = tuple(_shape_and_type(value) for value in node.inputs)
            shapes = {tensor.name: shape for tensor, (shape, _) in zip(spec.inputs, inputs, strict=False)}
            pool, data = _pool(node), inputs[spec.output_source(spec.outputs[0])][1]
            tensors = tuple(
                (
                    _tensor_name(pool, tensor.name),
                    tensor.shape(spec, shapes),
                    data if tensor.dtype is None else torch_from_dtype(tensor.dtype),
                )
                for tensor in RINGS[node.op_type]
            )
            attributes = spec.complete_attributes(Attributes(node).rest())
            yield RingLayer(node.op_type, attributes, pool, inputs, tensors)


def use_rings(graph: ir.Graph) -> None:
    """Make these operators read and extend their rings in place; in a Mamba2 mixer they also apply the gate."""
    mixers = {mixer.scan: mixer for mixer in find_mixers(graph)}
    for node in list(graph):
        if node.domain == DOMAIN and node.op_type in RINGS:
            _use_ring(graph, node, mixers.get(node))


def _use_ring(graph: ir.Graph, node: ir.Node, mixer: Mamba2Mixer | None) -> None:
    pool = _pool(node)
    names = (*(_tensor_name(pool, tensor.name) for tensor in RINGS[node.op_type]), RING_LENGTHS)
    inputs = [*node.inputs, *(engine_input(graph, name) for name in names)]
    attributes = {OPERATOR: node.op_type, **Attributes(node).rest()}
    y, state = node.outputs
    if mixer is not None:
        inputs.append(mixer.gate)
        y = mixer.gated
    ringed = fuse([y, state], STATE_RING, inputs, attributes)
    if mixer is not None and mixer.gated.dtype != mixer.gate.dtype:
        _cast(graph, ringed, mixer.gate.type)


def _cast(graph: ir.Graph, ringed: ir.Node, kind: ir.TypeProtocol | None) -> None:
    """Let ``ringed`` write its output in the type of the data, for a norm to read; a cast makes the wide one of it."""
    y = ringed.outputs[0]
    assert y.dtype is not None
    cast = ir.Node("", "Cast", [None], [ir.AttrInt64("to", int(y.dtype))], num_outputs=1)
    wide = cast.outputs[0]
    wide.type, wide.shape = y.type, y.shape
    ir.convenience.replace_all_uses_with(y, wide, replace_graph_outputs=True)
    cast.replace_input_with(0, y)
    graph.insert_after(ringed, cast)
    wide.name, y.name, y.type = y.name, f"{y.name}.data", kind


def _pool(node: ir.Node) -> str:
    value = node.inputs[spec_of(node.op_type, PACKED_VERSION).input_index("state")]
    assert value is not None
    return str(value.name)


def _tensor_name(pool: str, tensor: str) -> str:
    return f"ring.{pool}.{tensor}"


def _shape_and_type(value: ir.Value | None) -> tuple[tuple[int, ...], torch.dtype]:
    if value is None or value.shape is None or value.dtype is None:
        name = None if value is None else value.name
        raise EngineError(
            f"expected a shape and a type of {name}, for its ring, found none: export the checkpoint again"
        )
    shape = tuple(size if isinstance(size, int) else 1 for size in value.shape)
    return shape, torch_from_dtype(DType.from_onnx(int(value.dtype)))
