"""Body of ``selective_scan``: standard operators for one token, and a Scan over them for many.

Both hold the state as [state_size, channels] (``TRANSPOSED_STATE``), so that every product runs along the channels. One
token's state is still in the processor's caches when the next token needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.padding import without_padding
from hybridge.runtime.engines.onnxruntime.ssm_inputs import split_tokens
from hybridge.runtime.engines.onnxruntime.update_ssm_state import is_engine_state, time_step, transpose_state

# Prefix of the inner graph's value names.
_TOKEN = "token."


@dataclass(frozen=True)
class ScanInputs:
    """step, scaled [b, t, channels]: the time step, and x times it; B, C [b, t, groups, state_size]; log_decay
    [state_size, channels]; state [b, 1, state_size, channels].
    """

    step: ir.Value
    scaled: ir.Value
    B: ir.Value
    C: ir.Value
    log_decay: ir.Value
    state: ir.Value
    channels: int
    groups: int

    def tokens(self, insert: Inserter, count: int) -> Iterator[ScanInputs]:
        """The inputs of each of the ``count`` tokens, all with this state."""
        given = (self.step, self.scaled, self.B, self.C)
        for step, scaled, B, C in zip(*(split_tokens(insert, value, count) for value in given), strict=True):
            yield replace(self, step=step, scaled=scaled, B=B, C=C)

    def after(self, state: ir.Value) -> ScanInputs:
        """The same inputs with another initial state."""
        return replace(self, state=state)


def selective_scan_body(node: ir.Node, insert: Inserter, kernels: Kernels, padded: bool) -> list[ir.Value] | None:
    """y [batch, seq, channels] and the new state."""
    inputs = scan_inputs(node, insert, padded)
    if inputs is None:
        return None
    shape = fixed_shape(node.inputs[0])
    walk = scan_one_token if shape is not None and shape[1] == 1 else scan_tokens
    y, new_state = walk(insert, inputs)
    return [with_skip(node, insert, y), new_state]


def scan_inputs(node: ir.Node, insert: Inserter, padded: bool) -> ScanInputs | None:
    """The inputs of all forms; None if the sizes or the state's layout are not supported."""
    x, A, B, C, _, dt, dt_bias, state, lengths = node.inputs[:9]
    x_shape, b_shape = fixed_shape(x), fixed_shape(B)
    if x_shape is None or b_shape is None or len(x_shape) != 3 or x_shape[2] is None or not is_engine_state(node):
        return None
    if b_shape[2] is None:
        return None
    assert B is not None and C is not None and state is not None
    step = time_step(node, insert, dt, dt_bias)
    if padded:
        assert lengths is not None
        # A time step of zero leaves the state unchanged.
        step = without_padding(insert, step, lengths)
    log_decay = insert.op("Transpose", A, perm=[1, 0])
    transpose_state(node)
    return ScanInputs(step, insert.op("Mul", x, step), B, C, log_decay, state, x_shape[2], b_shape[2])


def with_skip(node: ir.Node, insert: Inserter, y: ir.Value) -> ir.Value:
    """``y`` [batch, seq, channels] plus D times x."""
    result: ir.Value = insert.op("Add", y, insert.op("Mul", node.inputs[0], node.inputs[4]))
    return result


def scan_one_token(insert: Inserter, i: ScanInputs) -> tuple[ir.Value, ir.Value]:
    """y [b, 1, channels], without the skip connection, and the new state."""
    step, scaled = (insert.reshape(value, 0, 1, 1, i.channels) for value in (i.step, i.scaled))
    B, C = (insert.reshape(value, 0, i.groups, -1) for value in (i.B, i.C))
    y, new_state = _token(insert, insert, i, i.state, step, scaled, B, C)
    return insert.reshape(y, 0, 1, i.channels), new_state


def scan_tokens(insert: Inserter, i: ScanInputs) -> tuple[ir.Value, ir.Value]:
    """As ``scan_one_token``, for any number of tokens, one after another."""
    names = ("state", "step", "scaled", "B", "C")
    inputs = [ir.Value(name=f"{_TOKEN}{name}", type=ir.TensorType(ir.DataType.FLOAT)) for name in names]
    end = ir.node("Identity", inputs[:1])
    graph = ir.Graph(inputs, [], nodes=[end], name="token")
    body = _TokenInserter(graph, end)
    state, step, scaled, B, C = inputs  # of one token: step, scaled [b, channels]; B, C [b, groups, state_size]
    step, scaled = (body.op("Unsqueeze", value, insert.ints(1, 2)) for value in (step, scaled))
    y, after = _token(body, insert, i, state, step, scaled, B, C)
    graph.outputs.extend([after, y])
    graph.remove(end, safe=True)
    tokens = (i.step, i.scaled, i.B, i.C)
    axes: dict[str, Any] = {"scan_input_axes": [1] * len(tokens), "scan_output_axes": [1]}
    new_state, y = insert.op("Scan", i.state, *tokens, outputs=2, body=graph, num_scan_inputs=len(tokens), **axes)
    return insert.reshape(y, 0, -1, i.channels), new_state


def _token(
    insert: Inserter,
    outer: Inserter,
    i: ScanInputs,
    state: ir.Value,
    step: ir.Value,
    scaled: ir.Value,
    B: ir.Value,
    C: ir.Value,
) -> tuple[ir.Value, ir.Value]:
    """y [b, 1, 1, channels] and the next state: step, scaled [b, 1, 1, channels]; B, C [b, groups, n].

    ``outer`` makes the constants of the graph that the nodes are in, or inside of.
    """
    decay = insert.op("Exp", insert.op("Mul", i.log_decay, step))
    written = insert.op("Mul", _by_channel(insert, outer, i, B), scaled)
    new_state = insert.op("Add", insert.op("Mul", state, decay), written)
    if i.groups == 1:
        return insert.op("MatMul", insert.op("Unsqueeze", C, outer.ints(1)), new_state), new_state
    read = insert.op("Mul", _by_channel(insert, outer, i, C), new_state)
    return insert.op("ReduceSum", read, outer.ints(2), keepdims=1), new_state


def _by_channel(insert: Inserter, outer: Inserter, i: ScanInputs, value: ir.Value) -> ir.Value:
    """[b, groups, n] -> [b, 1, n, channels], for one group [b, 1, n, 1]."""
    if i.groups == 1:
        return insert.op("Unsqueeze", value, outer.ints(3))
    columns = insert.op("Transpose", value, perm=[0, 2, 1])
    repeated = insert.op(
        "Tile", insert.op("Unsqueeze", columns, outer.ints(3)), outer.ints(1, 1, 1, i.channels // i.groups)
    )
    return insert.op("Unsqueeze", insert.op("Reshape", repeated, outer.ints(0, 0, i.channels)), outer.ints(1))


class _TokenInserter(Inserter):
    """Creates nodes of an inner graph, whose names must not be those of values around it."""

    def op(self, op_type: str, *inputs: ir.Value | None, **options: Any) -> Any:
        """Insert a node; returns its output value."""
        value = super().op(op_type, *inputs, **options)
        value.name = f"{_TOKEN}{value.name}"
        return value
