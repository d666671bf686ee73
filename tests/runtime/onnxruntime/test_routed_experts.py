"""ONNX Runtime's MoE in place of ``routed_experts``, and weights joined from one tensor for each expert."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from safetensors.numpy import save_file

from hybridge.artifact.safetensors_file import TensorSlot, read_safetensors
from hybridge.runtime.engines.onnxruntime.graph_edit import remove_dead_code
from hybridge.runtime.engines.onnxruntime.graph_weights import serialised_model
from hybridge.runtime.engines.onnxruntime.joined_weights import join_weights
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.op_bodies import use_op_bodies
from hybridge.runtime.engines.onnxruntime.weights import WeightStore
from tests.ops.expert_cases import CLAMPED, ExpertCase, expert_case, expert_loop
from tests.ops.oracle import relative_error
from tests.runtime.onnxruntime.op_graphs import NEWEST, STANDARD

NEEDS_MOE = pytest.mark.skipif(not NEWEST.experts, reason="needs an ONNX Runtime with SwiGLU in MoE")
TOKENS = ("x", "expert_ids", "expert_weights")


def graph(
    case: ExpertCase, folder: Path, activation: str, gated: int, each: bool = False, **numbers: float
) -> ir.Model:
    """One node over the case's weights in a safetensors file, stacked or one tensor for ``each`` matrix."""
    arrays = {n: a.astype(np.float32) for n, a in case.arrays().items() if n not in TOKENS}
    tensors: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        parts = [half for matrix in array for half in np.split(matrix, 2 if name == "up_weight" and gated else 1)]
        tensors.update({f"{name}.{i}": np.ascontiguousarray(part) for i, part in enumerate(parts)} if each else {})
    tensors = tensors or arrays
    save_file(tensors, folder / "w.safetensors")
    slots = read_safetensors(folder / "w.safetensors").tensors
    initializers = {name: _external(name, slots[name], folder) for name in tensors}
    inputs = [_value(n, ir.DataType.INT32 if n == "expert_ids" else ir.DataType.FLOAT, case) for n in TOKENS]
    nodes: list[ir.Node] = []
    weights = []
    for name, array in arrays.items():
        if not each:
            weights.append(initializers[name])
            continue
        rows = ir.node("Concat", [v for k, v in initializers.items() if k.startswith(name)], {"axis": 0})
        shape = ir.node("Constant", [], {"value_ints": list(array.shape)})
        whole = ir.node("Reshape", [rows.outputs[0], shape.outputs[0]])
        whole.outputs[0].name, whole.outputs[0].shape = name, ir.Shape(array.shape)
        nodes += [rows, shape, whole]
        weights.append(whole.outputs[0])
    attributes = {"activation": activation, "gated": gated, **numbers}
    node = ir.node("routed_experts", [*inputs, *weights], attributes, domain="trt_edgellm")
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = "y", inputs[0].type, inputs[0].shape
    opsets = {"": NEWEST.opset, "trt_edgellm": 1}
    values = list(initializers.values())
    return ir.Model(
        ir.Graph(inputs, node.outputs, nodes=[*nodes, node], initializers=values, opset_imports=opsets), ir_version=10
    )


def _external(name: str, slot: TensorSlot, folder: Path) -> ir.Value:
    shape = ir.Shape(slot.shape)
    tensor = ir.ExternalTensor(
        slot.path.name, slot.offset, slot.nbytes, ir.DataType.FLOAT, shape=shape, name=name, base_dir=folder
    )
    return ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType.FLOAT), const_value=tensor)


def _value(name: str, dtype: ir.DataType, case: ExpertCase) -> ir.Value:
    shape = ir.Shape(["batch", "seq", *getattr(case, name).shape[2:]])
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=shape)


def run(model: ir.Model, folder: Path, case: ExpertCase, kernels: Kernels) -> tuple[np.ndarray, WeightStore]:
    join_weights(model)
    store = WeightStore(folder)
    use_op_bodies(model, kernels, padded=False)
    remove_dead_code(model)
    assert [node.op_type for node in model.graph].count("MoE") == 1
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", f"{folder}/")
    serialised, weights = serialised_model(model)
    store.attach(weights, options)
    session = ort.InferenceSession(serialised, options, providers=["CPUExecutionProvider"])
    feeds = {n: getattr(case, n).astype(np.int32 if n == "expert_ids" else np.float32) for n in TOKENS}
    return session.run(None, feeds)[0], store


@NEEDS_MOE
@pytest.mark.parametrize(("activation", "gated"), [("silu", 1), ("silu", 0), ("relu", 0)])
@pytest.mark.parametrize("each", [False, True], ids=["stacked", "each"])
@pytest.mark.parametrize("sizes", [{}, {"time": 1, "batch": 1}, {"experts": 1, "top_k": 1}, {"experts": 3, "top_k": 3}])
def test_moe(tmp_path: Path, activation: str, gated: int, each: bool, sizes: dict[str, int]) -> None:
    case = expert_case(gated=gated, **sizes)
    y, store = run(graph(case, tmp_path, activation, gated, each), tmp_path, case, NEWEST)
    assert relative_error(y, expert_loop(case, activation, gated)) < 1e-6
    # Stacked weights that MoE reads as they lie stay mapped; each expert lies in memory once.
    weights = 4 * (case.up_weight.size + case.down_weight.size)
    copied = weights if each else 4 * case.up_weight.size * gated
    assert (store.mapped_bytes, store.copied_bytes) == (weights - copied, copied)


@NEEDS_MOE
def test_biases_and_a_clamped_gate(tmp_path: Path) -> None:
    case = expert_case(biased=True)
    y, _ = run(graph(case, tmp_path, "silu", 1, **CLAMPED), tmp_path, case, NEWEST)
    assert relative_error(y, expert_loop(case, "silu", 1, clamped=True)) < 1e-6


@NEEDS_MOE
def test_weights_of_zero(tmp_path: Path) -> None:
    case = expert_case()
    case.expert_weights[0, :, 0] = 0.0
    case.expert_weights[1] = 0.0
    y, _ = run(graph(case, tmp_path, "silu", 1), tmp_path, case, NEWEST)
    assert relative_error(y[0], expert_loop(case, "silu", 1)[0]) < 1e-6
    assert not y[1].any()


@pytest.mark.parametrize(
    ("activation", "gated", "kernels"), [("relu2", 0, NEWEST), ("gelu", 1, NEWEST), ("silu", 1, STANDARD)]
)
def test_other_forms_keep_the_function(tmp_path: Path, activation: str, gated: int, kernels: Kernels) -> None:
    model = graph(expert_case(gated=gated), tmp_path, activation, gated, each=True)
    join_weights(model)
    use_op_bodies(model, kernels, padded=False)
    assert [node.op_type for node in model.graph if node.op_type != "Constant"] == ["routed_experts"]
    assert set(model.graph.initializers) == {"up_weight", "down_weight"}
