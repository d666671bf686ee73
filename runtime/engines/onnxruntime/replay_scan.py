"""``selective_scan`` over draft tokens, which leaves the state unchanged, and the state after the accepted ones.

Every number of a state has its own decay, which follows from the time step and the weight A. So the tokens store time
steps, inputs and B, and the replaying graph has A.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.artifact_graph import mapped_bytes
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.replay_values import Accepted, Deferred, Stored
from hybridge.runtime.engines.onnxruntime.selective_scan import ScanInputs, scan_inputs, scan_tokens, with_skip

# What a weight passes through without a change of its numbers.
_FORMS = ("Identity", "Reshape", "Unsqueeze")


def selective_scan_replay(node: ir.Node, insert: Inserter, kernels: Kernels, count: int | None) -> Deferred | None:
    """One token after another; the time step, x times it, and B are stored."""
    inputs, decay, b_shape = scan_inputs(node, insert, padded=False), decay_numbers(node), fixed_shape(node.inputs[2])
    if inputs is None or decay is None or b_shape is None or b_shape[3] is None:
        return None
    state_size = b_shape[3]
    y, _ = scan_tokens(insert, inputs)
    stored = (
        Stored(inputs.step, (inputs.channels,)),
        Stored(inputs.scaled, (inputs.channels,)),
        Stored(inputs.B, (inputs.groups, state_size)),
    )
    weights = (decay.reshape(inputs.channels, state_size).T,)
    return Deferred(with_skip(node, insert, y), stored, (1, state_size, inputs.channels), weights)


def advance_scan(
    insert: Inserter, kernels: Kernels, stored: list[ir.Value], state: ir.Value, accepted: Accepted
) -> ir.Value:
    """The state after the stored tokens; a time step of zero leaves it unchanged."""
    step, scaled, B, log_decay = stored
    shape, b_shape = fixed_shape(state), fixed_shape(B)
    assert shape is not None and b_shape is not None and shape[3] is not None and b_shape[2] is not None
    # The tokens' reads of the states are not needed here.
    _, after = scan_tokens(insert, ScanInputs(step, scaled, B, B, log_decay, state, shape[3], b_shape[2]))
    return after


def decay_numbers(node: ir.Node) -> np.ndarray | None:
    """The numbers of A, channel by channel; None where the graph computes them."""
    value = node.inputs[1]
    while value is not None and (source := value.producer()) is not None:
        value = source.inputs[0] if source.op_type in _FORMS and not source.domain else None
    tensor = None if value is None else value.const_value
    if tensor is None:
        return None
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor.numpy()
    numbers = mapped_bytes(tensor, Path(str(tensor.base_dir)))
    return numbers.view(DType.from_onnx(int(tensor.dtype)).numpy)
