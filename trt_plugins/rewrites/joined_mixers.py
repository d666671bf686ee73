"""Mamba2 mixers as one node each, mamba2_conv_scan."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from hybridge.trt_plugins.catalog import DOMAIN, spec_of
from hybridge.trt_plugins.rewrites.mamba2_mixer import SCAN, Mamba2Mixer, find_mixers

JOINED = "mamba2_conv_scan"


def with_joined_mixers(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """A copy of ``model`` with its mixers joined, None where it has none.

    The copy has no function for the joined operator: plugins need none, and ``attach_functions`` adds it.
    """
    copy = ir.from_proto(model)
    return ir.to_proto(copy) if join_mixers(copy.graph) else None


def join_mixers(graph: ir.Graph) -> int:
    """Replace every mixer by one mamba2_conv_scan, in place; returns their number.

    Values keep their names. The new node is named after the scan, with the operator's name for the old one's.
    """
    mixers = find_mixers(graph)
    for mixer in mixers:
        _join(graph, mixer)
    if mixers:
        # What reads a state may come before the gate, where the joined node is.
        graph.sort()
    return len(mixers)


def _join(graph: ir.Graph, mixer: Mamba2Mixer) -> None:
    gated, data = mixer.gated, mixer.gate
    attributes = [ir.convenience.convert_attribute(name, value) for name, value in mixer.attributes.items()]
    name = str(mixer.scan.name).replace(SCAN, JOINED)
    joined = ir.Node(DOMAIN, JOINED, mixer.inputs, attributes, num_outputs=len(spec_of(JOINED).outputs), name=name)
    last = gated.producer()
    assert last is not None and gated.dtype is not None
    graph.insert_before(last, joined)
    y = joined.outputs[0]
    y.name, y.type, y.shape = f"{gated.name}.data", data.type, data.shape
    if gated.dtype != data.dtype:
        cast = ir.Node("", "Cast", [y], [ir.AttrInt64("to", int(gated.dtype))], name=f"{name}.cast")
        graph.insert_before(last, cast)
        y = cast.outputs[0]
    old = (gated, *mixer.state_outputs)
    for before, after in zip(old, (y, *joined.outputs[1:]), strict=True):
        _replace(graph, before, after)
    _remove_unused(graph, mixer.nodes)


def _replace(graph: ir.Graph, before: ir.Value, after: ir.Value) -> None:
    """Replace ``before`` by ``after``: its readers, its place among the graph's outputs, its name and type."""
    after.name, after.type, after.shape = before.name, before.type, before.shape
    before.replace_all_uses_with(after, replace_graph_outputs=True)


def _remove_unused(graph: ir.Graph, nodes: tuple[ir.Node, ...]) -> None:
    """Remove ``nodes``, readers before what they read, with constants that only they read."""
    for node in nodes:
        if any(value.uses() or value.is_graph_output() for value in node.outputs):
            continue
        read = [value.producer() for value in node.inputs if value is not None]
        graph.remove(node, safe=True)
        constants = [p for p in dict.fromkeys(read) if p is not None and p.op_type == "Constant"]
        graph.remove([p for p in constants if not p.outputs[0].uses()], safe=True)
