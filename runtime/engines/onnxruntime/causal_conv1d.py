"""Body of ``causal_conv1d``: CausalConvWithState, or standard operators for one token.

CausalConvWithState of a kernel of size n carries n - 1 columns. With a zero tap in front of the weight it carries
exactly the kernel-wide state of the operator, in its layout, and may update it in place. Its own SiLU is a scalar
loop; QuickGelu with alpha 1 is the same function, vectorised.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes
from runtime.engines.onnxruntime.kernels import Kernels


def causal_conv1d_body(node: ir.Node, insert: Inserter, kernels: Kernels) -> list[ir.Value] | None:
    """y [batch, seq, conv_dim] and the new state [batch, conv_dim, kernel], for rows without padding."""
    x, weight, bias, state = node.inputs[:4]
    shape, weight_shape = fixed_shape(x), fixed_shape(weight)
    if shape is None or len(shape) != 3 or weight_shape is None or weight_shape[0] is None:
        return None
    assert x is not None and weight is not None and state is not None
    one_token = shape[1] == 1
    if kernels.recurrent_ops:
        y, new_state = _fused(insert, x, weight, bias, state, one_token, weight_shape[0])
    elif one_token:
        y, new_state = _standard_step(insert, x, weight, bias, state, weight_shape[0])
    else:
        return None
    if op_attributes(node)["activation"] == "silu":
        y = insert.microsoft("QuickGelu", y, alpha=1.0)
    if kernels.recurrent_ops and not one_token:
        y = insert.op("Transpose", y, perm=[0, 2, 1])
    else:
        y = insert.reshape(y, 0, 1, weight_shape[0])
    return [y, new_state]


def _fused(
    insert: Inserter,
    x: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    state: ir.Value,
    one_token: bool,
    channels: int,
) -> tuple[ir.Value, ir.Value]:
    columns = insert.reshape(x, 0, channels, 1) if one_token else insert.op("Transpose", x, perm=[0, 2, 1])
    zero_tap = insert.constant(np.zeros((channels, 1, 1), np.float32))
    taps = insert.op("Concat", zero_tap, weight, axis=2)
    y, new_state = insert.microsoft("CausalConvWithState", columns, taps, bias, state, outputs=2)
    return y, new_state


def _standard_step(
    insert: Inserter, x: ir.Value, weight: ir.Value, bias: ir.Value | None, state: ir.Value, channels: int
) -> tuple[ir.Value, ir.Value]:
    """Shift the state by the one token; y is the tap-weighted sum of its columns, [batch, conv_dim]."""
    column = insert.reshape(x, 0, channels, 1)
    kept = insert.op("Slice", state, insert.ints(1), insert.ints(np.iinfo(np.int64).max), insert.ints(2))
    new_state = insert.op("Concat", kept, column, axis=2)
    taps = insert.op("Squeeze", weight, insert.ints(1))
    y = insert.op("ReduceSum", insert.op("Mul", new_state, taps), insert.ints(2), keepdims=0)
    return (y if bias is None else insert.op("Add", y, bias)), new_state
