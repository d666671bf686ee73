"""Trace one layer of each kind, then lay the traced nodes out once per layer.

Tracing costs about 0.2 s a layer, and layers of one configuration give the same nodes. So the tracer sees a decoder
of the distinct layers only; here its graph is cut at the marks between the layers, and each layer of the model gets
a copy of its kind's section with its own parameters and states.

The step's place in the caches and rotary tables are computed in the section that uses them first. They depend on no
layer, so only the first copy of a section holds them and all others share them; distinct layers are traced in the order
of their first appearance, so shared nodes come before their users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import onnx_ir as ir

from hybridge.artifact.bindings import GraphBindings
from hybridge.artifact.errors import ExportError
from hybridge.artifact.names import EMBEDDINGS_OUTPUT, layer_output
from hybridge.exporter.families.decoder_config import DecoderConfig, LayerConfig
from hybridge.exporter.ops.mark import MARK_ATTRIBUTE, MARK_DOMAIN, MARK_OP
from hybridge.trt_plugins.specs.attention_step import ATTENTION_STEP

# Operators that read the shape alone of a state.
SHAPE_READERS = frozenset({"Shape", ATTENTION_STEP.name})


def distinct_layers(config: DecoderConfig) -> DecoderConfig:
    """``config`` with one layer of each kind, in the order of their first appearance."""
    return replace(config, layers=tuple(dict.fromkeys(layer.kind for layer in config.layers)))


def unroll(traced: ir.Model, config: DecoderConfig, reduced: GraphBindings, bindings: GraphBindings) -> ir.Model:
    """The model of ``config`` from ``traced``, the model of ``distinct_layers(config)``.

    ``reduced`` and ``bindings`` are the inputs and outputs of the two. ExportError when the traced graph lacks a mark.
    """
    kinds = distinct_layers(config).layers
    head, sections, tail, boundaries = _sections(traced.graph, len(kinds))
    carried = [_carried(boundary) for boundary in boundaries]
    layout = _Layout(traced.graph, bindings)
    layout.lay_out(head, "")
    x = layout.values[boundaries[0]]
    traced_states = _states_by_layer(kinds, reduced)
    inputs = frozenset(binding.name for binding in reduced.states)
    own = [_layer_nodes(nodes, f"layers.{k}.", boundaries[k], inputs) for k, nodes in enumerate(sections)]
    seen: set[int] = set()
    latest: ir.Value | None = None
    for index, (layer, states) in enumerate(zip(config.layers, _states_by_layer(config.layers, bindings), strict=True)):
        kind = kinds.index(layer.kind)
        layout.values[boundaries[kind]] = x
        before, after = carried[kind], carried[kind + 1]
        if before is not None and latest is not None:
            layout.values[before] = latest
        layout.rename = dict(zip(traced_states[kind], states, strict=True))
        layout.layer = (f"layers.{kind}.", f"layers.{index}.")
        layout.lay_out(own[kind] if kind in seen else sections[kind], f".{index}")
        seen.add(kind)
        latest = None if after is None else layout.values[after]
        x = layout.values[boundaries[kind + 1]]
        x.producer().attributes[MARK_ATTRIBUTE] = ir.AttrString(MARK_ATTRIBUTE, layer_output(index))  # type: ignore[union-attr]
    layout.values[boundaries[-1]] = x
    layout.lay_out(tail, ".end")
    return layout.model(traced)


def _carried(boundary: ir.Value) -> ir.Value | None:
    """What the layer behind ``boundary`` reads beside it, if there is anything."""
    node = boundary.producer()
    assert node is not None
    return node.inputs[1] if len(node.inputs) > 1 else None


def _sections(graph: ir.Graph, count: int) -> tuple[list[ir.Node], list[list[ir.Node]], list[ir.Node], list[ir.Value]]:
    """Nodes before the first layer, of each layer, after the last; and the marked values between them."""
    ends = [EMBEDDINGS_OUTPUT, *(layer_output(i) for i in range(count))]
    parts: list[list[ir.Node]] = [[]]
    boundaries: list[ir.Value] = []
    for node in graph:
        parts[-1].append(node)
        is_mark = (node.domain, node.op_type) == (MARK_DOMAIN, MARK_OP)
        if is_mark and node.attributes[MARK_ATTRIBUTE].as_string() in ends:
            boundaries.append(node.outputs[0])
            parts.append([])
    if len(boundaries) != len(ends):
        raise ExportError(f"expected {len(ends)} marked values in the traced graph, found {len(boundaries)}")
    return parts[0], parts[1:-1], parts[-1], boundaries


def _layer_nodes(nodes: list[ir.Node], prefix: str, x: ir.Value, states: frozenset[str]) -> list[ir.Node]:
    """The nodes that depend on the layer: on ``x``, its parameters or ``states`` (but not only on their shapes)."""
    dependent: set[ir.Value] = {x}
    result = []
    for node in nodes:
        if node.op_type in SHAPE_READERS:
            continue
        if any(
            value is not None
            and (
                value in dependent
                or str(value.name).startswith(prefix)
                or (value.is_graph_input() and value.name in states)
            )
            for value in node.inputs
        ):
            dependent.update(node.outputs)
            result.append(node)
    return result


def _states_by_layer(layers: Sequence[LayerConfig], bindings: GraphBindings) -> list[tuple[str, ...]]:
    """Per layer the names of its state inputs and outputs, in order: input, output, input, output."""
    names = [(b.name, str(b.replaced_by)) for b in bindings.states]
    attention = len(names) - sum(layer.recurrent_states for layer in layers)
    each = attention // max(1, sum(layer.has_attention for layer in layers))
    attention_names, recurrent_names = iter(names[:attention]), iter(names[attention:])
    result: list[tuple[str, ...]] = []
    for layer in layers:
        own = [*islice(attention_names, each if layer.has_attention else 0)]
        own += islice(recurrent_names, layer.recurrent_states)
        result.append(tuple(name for state in own for name in state))
    return result


class _Layout:
    """The new graph as it grows. ``values`` maps values of the traced graph to their latest copies.

    ``rename`` maps names of traced state inputs and outputs to those of the layer being laid out; ``layer`` is the
    pair of parameter name prefixes (traced, new).
    """

    def __init__(self, traced: ir.Graph, bindings: GraphBindings) -> None:
        self.values: dict[ir.Value, ir.Value] = {}
        self.rename: dict[str, str] = {}
        self.layer = ("", "")
        self._bindings = bindings
        self._interface = {value.name for value in (*traced.inputs, *traced.outputs)}
        self._initializers: dict[str, ir.Value] = {}
        self._traced_initializers = set(traced.initializers)
        self._named: dict[str, ir.Value] = {}
        self._nodes: list[ir.Node] = []
        self._inputs = [
            ir.Value(name=b.name, shape=ir.Shape(b.shape), type=ir.TensorType(ir.DataType(b.dtype.onnx)))
            for b in bindings.inputs
        ]
        self._named.update({str(value.name): value for value in self._inputs})

    def lay_out(self, nodes: list[ir.Node], suffix: str) -> None:
        """Append copies of ``nodes``; their values' names get ``suffix``."""
        for node in nodes:
            inputs = [None if value is None else self._input(value) for value in node.inputs]
            copy = ir.Node(
                node.domain,
                node.op_type,
                inputs,
                attributes=list(node.attributes.values()),
                num_outputs=len(node.outputs),
                version=node.version,
                name=f"{node.name}{suffix}",
            )
            for old, new in zip(node.outputs, copy.outputs, strict=True):
                new.name, new.type, new.shape = self._output_name(str(old.name), suffix), old.type, old.shape
                self.values[old] = new
                self._named[new.name] = new
            self._nodes.append(copy)

    def model(self, traced: ir.Model) -> ir.Model:
        """The finished model."""
        graph = ir.Graph(
            self._inputs,
            [self._named[b.name] for b in self._bindings.outputs],
            nodes=self._nodes,
            initializers=list(self._initializers.values()),
            opset_imports=dict(traced.graph.opset_imports),
            name=traced.graph.name,
        )
        return ir.Model(graph, ir_version=traced.ir_version, functions=list(traced.functions.values()))

    def _input(self, value: ir.Value) -> ir.Value:
        name = str(value.name)
        if name in self._traced_initializers:
            return self._initializer(value, name)
        if value.is_graph_input():
            return self._named[self.rename.get(name, name)]
        return self.values[value]

    def _initializer(self, value: ir.Value, name: str) -> ir.Value:
        traced, new = self.layer
        name = new + name.removeprefix(traced) if traced and name.startswith(traced) else name
        if name not in self._initializers:
            copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
            self._initializers[name] = copy
        return self._initializers[name]

    def _output_name(self, name: str, suffix: str) -> str:
        return self.rename.get(name, name) if name in self._interface else f"{name}{suffix}"
