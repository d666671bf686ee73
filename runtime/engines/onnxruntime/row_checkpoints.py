"""Recurrent operators of one row that also return the states after other tokens than its last.

Only operators of the library of CPU kernels can. A prompt whose states the prefix cache stores is one step then, which
reads each weight once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN
from hybridge.runtime.engines.onnxruntime.graph_edit import add_input
from hybridge.runtime.engines.onnxruntime.graph_form import CHECKPOINT_LENGTHS, checkpoint_output

_COUNT = "engine.checkpoints"
# Index of the state among the inputs of an operator; checkpoint_lengths is the last of so many.
_INPUTS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"CausalConv1d": (2, 6), "GatedDeltaRule": (5, 8), "UpdateSsmState": (7, 10)}
)


def return_checkpoints(graph: ir.Graph, pools: Collection[str]) -> None:
    """Let the graph return the states of all ``pools`` after CHECKPOINT_LENGTHS [n] tokens; unchanged where it cannot.

    The numbers ascend from 1 to the tokens of the row.
    """
    nodes = {}
    for node in graph:
        if node.domain == CPU_DOMAIN and node.op_type in _INPUTS:
            state = node.inputs[_INPUTS[node.op_type][0]]
            if state is not None and state.is_graph_input():
                nodes[state.name] = node
    if not pools or nodes.keys() != set(pools):
        return
    after = add_input(graph, CHECKPOINT_LENGTHS, ir.DataType.INT32, [_COUNT])
    for pool, node in nodes.items():
        state_at, inputs = _INPUTS[node.op_type]
        state = node.inputs[state_at]
        assert pool is not None and state is not None and state.shape is not None
        node.resize_inputs(inputs)
        node.replace_input_with(inputs - 1, after)
        node.resize_outputs(3)
        checkpoints = node.outputs[2]
        checkpoints.name, checkpoints.type = checkpoint_output(pool), state.type
        checkpoints.shape = ir.Shape([_COUNT, *state.shape.dims[1:]])
        graph.outputs.append(checkpoints)
