"""Bodies of the operators over states with rings: those of the plain operators, over the state after its ring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from hybridge.artifact.state_rings import RING_LENGTHS
from hybridge.runtime.engines.onnxruntime.gated_delta_rule import NORM_EPSILON
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.update_ssm_state import INNER_STATE, time_step
from hybridge.trt_plugins.catalog import DOMAIN, OPS
from hybridge.trt_plugins.ring_nodes import RingNodes
from hybridge.trt_plugins.specs.state_forms import base_name
from hybridge.trt_plugins.specs.state_ring import STATE, ring_names

TRANSPOSED_OPERATOR = "update_ssm_state"
"""The operator whose bodies swap the last two axes of the state."""
_Body = Callable[[ir.Node, Inserter, Kernels, bool], "list[ir.Value] | None"]


def body_ring(body: _Body) -> _Body:
    """The body over states with rings from ``body``, that of the plain operator."""

    def body_of(node: ir.Node, insert: Inserter, kernels: Kernels, padded: bool) -> list[ir.Value] | None:
        flushed = FlushedNode.of(node, insert)
        found = body(flushed.node, Inserter(insert.graph, flushed.node), kernels, padded)
        insert.graph.remove(flushed.node, safe=True)
        if found is None:
            return None
        y, last = found
        return [y, *flushed.stored(insert, node, last, padded)]

    return body_of


@dataclass(frozen=True)
class FlushedNode:
    """``node``: a plain operator over ``state``, which is the state after its ring, in front of the one that it stands
    for; to be removed.

    state: in the order of the declaration. before: the state and the ring as they are.
    """

    node: ir.Node
    ring: RingNodes[ir.Value]
    state: ir.Value
    before: tuple[ir.Value, ...]

    @classmethod
    def of(cls, node: ir.Node, insert: Inserter) -> FlushedNode:
        """That of ``node``, a dense operator over states with rings."""
        spec, plain = OPS[node.op_type], base_name(node.op_type)
        by_name = dict(zip((tensor.name for tensor in spec.inputs), node.inputs, strict=True))
        before = tuple(_given(by_name[name]) for name in (STATE, *ring_names(spec)))
        ring = RingNodes(insert, plain, _given(by_name[RING_LENGTHS]))
        state = ring.flushed(before[0], before[1:])
        inner = in_order_of_bodies(insert, plain, state, before[0])
        inputs = [inner if t.name == STATE else by_name[t.name] for t in OPS[plain].inputs]
        made = ir.node(plain, inputs, dict(node.attributes), domain=DOMAIN, num_outputs=2)
        for output, like in zip(made.outputs, (node.outputs[0], inner), strict=True):
            output.type, output.shape = like.type, like.shape
        insert.graph.insert_before(node, made)
        return cls(made, ring, state, before)

    def stored(self, insert: Inserter, node: ir.Node, last: ir.Value, padded: bool) -> tuple[ir.Value, ...]:
        """The outputs of ``node`` behind the first, from the state ``last`` of the plain one.

        padded: rows may have no tokens.
        """
        data = node.inputs[0]
        time, one = insert.size(_given(data), 1), insert.ints(1)
        has_tokens = None
        if padded:
            lengths = insert.op("Unsqueeze", node.inputs[-1], one)
            has_tokens = insert.op("Greater", lengths, insert.constant(np.array(0, np.int32)))
        last = in_order_of_declaration(insert, base_name(node.op_type), last)
        return self.ring.outputs(
            insert.op("Equal", time, one), has_tokens, self.before, last, self._entry(insert, node)
        )

    def _entry(self, insert: Inserter, node: ir.Node) -> tuple[ir.Value, ...]:
        def first(value: ir.Value | None) -> ir.Value:
            found: ir.Value = insert.op("Slice", value, insert.ints(0), insert.ints(1), insert.ints(1))
            return found

        if base_name(node.op_type) == TRANSPOSED_OPERATOR:
            x, A, B, _, _, dt, dt_bias = node.inputs[:7]
            return self.ring.ssm_entry(first(x), first(B), time_step(self.node, insert, first(dt), dt_bias), _given(A))
        _, k, v, g, beta = (first(value) for value in node.inputs[:5])
        norm = None
        if op_attributes(node)["use_qk_l2norm"]:
            squares = insert.op("ReduceSumSquare", k, insert.ints(3), keepdims=1)
            norm = insert.op("Sqrt", insert.op("Add", squares, insert.constant(np.array(NORM_EPSILON, np.float32))))
        return self.ring.delta_entry(self.state, k, norm, v, g, insert.op("Unsqueeze", beta, insert.ints(3)))


def in_order_of_bodies(insert: Inserter, operator: str, state: ir.Value, like: ir.Value) -> ir.Value:
    """``state``, of the shape of ``like``, in the order that bodies of ``operator`` keep it in."""
    shape = fixed_shape(like)
    assert like.shape is not None and shape is not None
    state.type = ir.TensorType(ir.DataType.FLOAT)
    if operator != TRANSPOSED_OPERATOR:
        state.shape = like.shape
        return state
    first, second, third, fourth = like.shape.dims
    inner: ir.Value = insert.op("Transpose", state, perm=[0, 1, 3, 2])
    inner.type, inner.shape = state.type, ir.Shape([first, second, fourth, third])
    inner.meta[INNER_STATE] = True
    return inner


def in_order_of_declaration(insert: Inserter, operator: str, state: ir.Value) -> ir.Value:
    """The inverse of ``in_order_of_bodies``."""
    if operator != TRANSPOSED_OPERATOR:
        return state
    found: ir.Value = insert.op("Transpose", state, perm=[0, 1, 3, 2])
    return found


def _given(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value
