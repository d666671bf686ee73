"""Bodies of the operators over states of 8 bits: those over float32 states, between reading and rounding the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.update_ssm_state import (
    INNER_STATE,
    TRANSPOSED_STATE,
    is_supported,
    own_operator,
    transpose_state,
)
from hybridge.trt_plugins.catalog import DOMAIN, OPS
from hybridge.trt_plugins.specs.state_8bit import STATE, STATE_SCALES, scale_axis
from hybridge.trt_plugins.specs.state_forms import base_name
from hybridge.trt_plugins.state_rounding import exact_state, rounded_state

# The operator whose bodies swap the last two axes of the state.
_TRANSPOSED = "update_ssm_state"
_Body = Callable[[ir.Node, Inserter, Kernels, bool], "list[ir.Value] | None"]


def body_8bit(body: _Body) -> _Body:
    """The body over states of 8 bits from ``body``, that over float32 states."""

    def body_of(node: ir.Node, insert: Inserter, kernels: Kernels, padded: bool) -> list[ir.Value] | None:
        if base_name(node.op_type) == _TRANSPOSED and is_supported(node) and _has_own(node, kernels):
            return own_operator(node, insert, padded, node.inputs[OPS[node.op_type].input_index(STATE_SCALES)])
        wide = WideNode.of(node, insert, kernels)
        if wide is None:
            return None
        found = body(wide.node, Inserter(insert.graph, wide.node), kernels, padded)
        insert.graph.remove(wide.node, safe=True)
        if found is None:
            return None
        y, state = found
        return [y, *wide.stored(insert, state, padded)]

    return body_of


@dataclass(frozen=True)
class WideNode:
    """``node``: an operator over a float32 state, of which the values and scales are ``before``; to be removed.

    lengths: tokens of each row. own: whether the library of CPU kernels reads and rounds the state.
    """

    node: ir.Node
    dtype: DType
    axis: int
    before: tuple[ir.Value, ir.Value]
    lengths: ir.Value | None
    own: bool

    @classmethod
    def of(cls, node: ir.Node, insert: Inserter, kernels: Kernels) -> WideNode | None:
        """The operator that ``node``, a dense operator over a state of 8 bits, is a form of, in front of it.

        None where its body would refuse it.
        """
        spec = OPS[node.op_type]
        index = spec.input_index(STATE)
        values, scales = node.inputs[index : index + 2]
        assert values is not None and scales is not None and values.dtype is not None
        # The numbers of a row that share a scale stay together where the engine swaps the last two axes.
        if base_name(spec.name) == _TRANSPOSED:
            if not is_supported(node):
                return None
            transpose_state(node)
        axis = _swapped(scale_axis(spec)) if TRANSPOSED_STATE in values.meta else scale_axis(spec)
        dtype = DType.from_onnx(int(values.dtype))
        own = _has_own(node, kernels)
        if own:
            state = insert.op("WidenState", values, scales, domain=CPU_DOMAIN, **_attributes(axis))
        else:
            state = exact_state(insert, values, scales, dtype, axis)
        state.type, state.shape = ir.TensorType(ir.DataType.FLOAT), values.shape
        state.meta[INNER_STATE] = True
        inputs = [
            state if tensor.name == STATE else value for tensor, value in zip(spec.inputs, node.inputs, strict=True)
        ]
        del inputs[spec.input_index(STATE_SCALES)]
        wide = ir.node(base_name(node.op_type), inputs, dict(node.attributes), domain=DOMAIN, num_outputs=2)
        for output, like in zip(wide.outputs, (node.outputs[0], state), strict=True):
            output.type, output.shape = like.type, like.shape
        insert.graph.insert_before(node, wide)
        return cls(wide, dtype, axis, (values, scales), node.inputs[-1], own)

    def rounded(self, insert: Inserter, state: ir.Value) -> tuple[ir.Value, ir.Value]:
        """float32 states [..., rows, columns] as values and scales."""
        if not self.own:
            return rounded_state(insert, state, self.dtype, self.axis)
        found: tuple[ir.Value, ir.Value] = insert.op(
            "RoundState", state, domain=CPU_DOMAIN, outputs=2, **_attributes(self.axis)
        )
        return found

    def stored(self, insert: Inserter, state: ir.Value, padded: bool) -> tuple[ir.Value, ...]:
        """The float32 ``state`` as values and scales. padded: rows may have no tokens; these keep both as they are."""
        new = self.rounded(insert, state)
        if not padded:
            return new
        has_tokens = insert.op("Greater", self.lengths, insert.constant(np.array(0, np.int32)))
        return tuple(
            insert.op("Where", insert.op("Unsqueeze", has_tokens, insert.ints(*axes)), value, before)
            for value, before, axes in zip(new, self.before, ((1, 2, 3), (1, 2)), strict=True)
        )


def _has_own(node: ir.Node, kernels: Kernels) -> bool:
    """Whether the library of CPU kernels reads and rounds the state of ``node``."""
    state = node.inputs[OPS[node.op_type].input_index(STATE)]
    assert state is not None
    return state.dtype == ir.DataType.INT8 and kernels.own_operators and cpu_library().path is not None


def _attributes(axis: int) -> dict[str, int]:
    return {"by_column": int(axis == -2), "instructions": 0}


def _swapped(axis: int) -> int:
    return -3 - axis
