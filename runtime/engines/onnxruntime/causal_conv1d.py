"""Body of ``causal_conv1d``: CausalConv1d of the library of CPU kernels, CausalConvWithState, or standard operators.

CausalConvWithState of a kernel of size n carries n - 1 columns. With a zero tap in front of the weight it carries
exactly the kernel-wide state of the operator, in its layout, and may update it in place. Its own SiLU is a scalar
loop, as fast as nodes for one token and a third as fast for many.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, op_attributes
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.padding import last_columns
from hybridge.trt_plugins.activations import silu

# As in plugin_src/cpu/conv.h.
_MOST_TAPS = 16
_END = int(np.iinfo(np.int64).max)


def causal_conv1d_body(node: ir.Node, insert: Inserter, kernels: Kernels, padded: bool) -> list[ir.Value] | None:
    """y [batch, seq, conv_dim] and the new state [batch, conv_dim, kernel]."""
    x, weight, bias, state, lengths = node.inputs[:5]
    shape, weight_shape = fixed_shape(x), fixed_shape(weight)
    if shape is None or len(shape) != 3 or weight_shape is None or weight_shape[0] is None:
        return None
    assert x is not None and weight is not None and state is not None and lengths is not None
    channels, one_token = weight_shape[0], shape[1] == 1
    activation = str(op_attributes(node)["activation"])
    own = own_convolution(node, insert, kernels, padded)
    if own is not None:
        return own
    columns = insert.reshape(x, 0, channels, 1) if one_token else insert.op("Transpose", x, perm=[0, 2, 1])
    if kernels.recurrent_ops and not padded:
        inner = activation if one_token else "none"
        taps = insert.op("Concat", insert.constant(np.zeros((channels, 1, 1), np.float32)), weight, axis=2)
        y, new_state = insert.microsoft("CausalConvWithState", columns, taps, bias, state, outputs=2, activation=inner)
        activation = "none" if one_token else activation
    elif one_token:
        y, new_state = _standard_step(insert, columns, weight, bias, state)
    else:
        y, new_state = _standard_prefill(insert, columns, weight, bias, state, lengths if padded else None)
    if activation == "silu":
        y = silu(insert, y)
    y = insert.reshape(y, 0, 1, channels) if one_token else insert.op("Transpose", y, perm=[0, 2, 1])
    return [y, new_state]


def own_convolution(node: ir.Node, insert: Inserter, kernels: Kernels, padded: bool) -> list[ir.Value] | None:
    """y and the new state by CausalConv1d of the library; None without it, or for a kernel that it does not support."""
    x, weight, bias, state, lengths = node.inputs[:5]
    shape = fixed_shape(weight)
    if not kernels.own_operators or shape is None or shape[2] is None or not has_own_convolution(shape[2]):
        return None
    assert x is not None and weight is not None and state is not None
    return convolution(
        insert, x, weight, state, bias, lengths if padded else None, op_attributes(node)["activation"] == "silu"
    )


def has_own_convolution(taps: int) -> bool:
    """Whether the library computes a kernel of so many taps."""
    return taps <= _MOST_TAPS and cpu_library().path is not None


def convolution(
    insert: Inserter,
    x: ir.Value,
    weight: ir.Value,
    state: ir.Value,
    bias: ir.Value | None,
    lengths: ir.Value | None,
    with_silu: bool = False,
) -> list[ir.Value]:
    """A CausalConv1d node: y and the new state, of the first ``lengths`` [batch] tokens of each row or of all."""
    inputs = (x, weight, state, bias, *(() if lengths is None else (lengths,)))
    return list(insert.op("CausalConv1d", *inputs, domain=CPU_DOMAIN, outputs=2, silu=int(with_silu), instructions=0))


def _standard_step(
    insert: Inserter, column: ir.Value, weight: ir.Value, bias: ir.Value | None, state: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Shift ``column`` [b, conv_dim, 1] into the state; y [b, conv_dim] is the sum of its columns times the taps."""
    window = insert.op("Slice", state, insert.ints(1), insert.ints(_END), insert.ints(2))
    new_state = insert.op("Concat", window, column, axis=2)
    taps = insert.op("Squeeze", weight, insert.ints(1))
    y = insert.op("ReduceSum", insert.op("Mul", new_state, taps), insert.ints(2), keepdims=0)
    return (y if bias is None else insert.op("Add", y, bias)), new_state


def _standard_prefill(
    insert: Inserter,
    columns: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    state: ir.Value,
    context_lengths: ir.Value | None,
) -> tuple[ir.Value, ir.Value]:
    """Convolve ``columns`` [b, conv_dim, t] with the state in front; y is like ``columns``.

    Without ``context_lengths`` all t columns of every row count.
    """
    kernel = fixed_shape(weight)
    assert kernel is not None and kernel[0] is not None and kernel[2] is not None
    stacked = insert.op("Concat", state, columns, axis=2)
    y = insert.op("Conv", stacked, weight, bias, group=kernel[0])
    if context_lengths is None:
        new_state = insert.op("Slice", stacked, insert.ints(-kernel[2]), insert.ints(_END), insert.ints(2))
    else:
        new_state = last_columns(insert, stacked, context_lengths, kernel[0], kernel[2])
    # The first window contains no new token.
    return insert.op("Slice", y, insert.ints(1), insert.ints(_END), insert.ints(2)), new_state
