"""Graphs of one operator, rewritten as the engine does, run on float32 arrays."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from hybridge.artifact.bindings import BATCH, SEQ
from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library
from hybridge.runtime.engines.onnxruntime.fixed_axes import fix_axes
from hybridge.runtime.engines.onnxruntime.graph_edit import remove_dead_code
from hybridge.runtime.engines.onnxruntime.kernels import Kernels, installed_kernels, quiet_options
from hybridge.runtime.engines.onnxruntime.op_bodies import use_op_bodies
from hybridge.runtime.engines.onnxruntime.update_ssm_state import TRANSPOSED_STATE
from tests.ops.oracle import ConvCase, DeltaCase, SsmCase

NEWEST = replace(installed_kernels(), own_operators=False)
STANDARD = Kernels(NEWEST.opset, recurrent_ops=False, experts=False, window_margin=NEWEST.window_margin)
"""The standard operators only, as on an older ONNX Runtime."""
OWN = installed_kernels()
"""With the operators of the library of CPU kernels, if a compiler is installed."""
NEEDS_LINEAR_ATTENTION = pytest.mark.skipif(
    not NEWEST.recurrent_ops, reason="needs an ONNX Runtime with LinearAttention"
)
KERNELS = {"own": OWN, "installed": NEWEST, "standard": STANDARD}
_TOKEN_WISE = ("x", "B", "C", "dt", "q", "k", "v", "g", "beta")
_WEIGHTS = ("weight", "bias", "A", "D", "dt_bias")
_STATES = ("conv_state", "state")


def op_model(op: str, case: ConvCase | SsmCase | DeltaCase, **attributes: float | int | str) -> ir.Model:
    """``op`` with its weights as initializers; batch and seq are symbolic."""
    values: list[ir.Value | None] = []
    inputs, initializers = [], []
    for field in fields(case):
        array = getattr(case, field.name)
        if array is None:
            values.append(None)
            continue
        if field.name in _WEIGHTS:
            tensor = ir.tensor(array.astype(np.float32), name=field.name)
            value = ir.Value(name=field.name, type=ir.TensorType(ir.DataType.FLOAT), shape=tensor.shape)
            value.const_value = tensor
            initializers.append(value)
        else:
            dtype = ir.DataType.INT32 if field.name == "context_lengths" else ir.DataType.FLOAT
            shape = [BATCH, SEQ, *array.shape[2:]] if field.name in _TOKEN_WISE else [BATCH, *array.shape[1:]]
            value = ir.Value(name=field.name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
            inputs.append(value)
        values.append(value)
    node = ir.node(op, values, attributes, domain="trt_edgellm", num_outputs=2)
    state = next(value for value in inputs if value.name in _STATES)
    tokens = next(value for value in inputs if value.name in ("x", "v"))
    for output, name, like in zip(node.outputs, ("y", "state_out"), (tokens, state), strict=True):
        output.name, output.type, output.shape = name, like.type, like.shape
    graph = ir.Graph(
        inputs,
        list(node.outputs),
        nodes=[node],
        initializers=initializers,
        opset_imports={"": NEWEST.opset, "trt_edgellm": 1},
        name="op",
    )
    return ir.Model(graph, ir_version=10)


def run_op(
    op: str,
    case: ConvCase | SsmCase | DeltaCase,
    kernels: Kernels,
    one_token: bool = False,
    padded: bool = False,
    instructions: int = 0,
    **attributes: float | int | str,
) -> tuple[np.ndarray, np.ndarray]:
    """y and the new state in the operator's layout; asserts that a body took the operator's place.

    instructions: for nodes of the library of CPU kernels.
    """
    model = op_model(op, case, **attributes)
    if one_token:
        fix_axes(model, {SEQ: 1})
    use_op_bodies(model, kernels, padded)
    remove_dead_code(model)
    assert not [node for node in model.graph if node.domain == "trt_edgellm"]
    for node in model.graph:
        if node.domain == CPU_DOMAIN:
            node.attributes["instructions"] = ir.AttrInt64("instructions", instructions)
    feeds, transposed = {}, False
    for value in model.graph.inputs:
        array = getattr(case, str(value.name))
        if TRANSPOSED_STATE in value.meta:
            transposed, array = True, array.swapaxes(-1, -2)
        dtype = np.int32 if value.name == "context_lengths" else np.float32
        feeds[str(value.name)] = np.ascontiguousarray(array, dtype)
    options = quiet_options()
    if CPU_DOMAIN in model.graph.opset_imports:
        options.register_custom_ops_library(str(cpu_library().path))
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    y, state = session.run(["y", "state_out"], feeds)
    return y, state.swapaxes(-1, -2) if transposed else state
