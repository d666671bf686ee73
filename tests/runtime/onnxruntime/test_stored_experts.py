"""The operator RoutedExperts of our CPU library against a float64 loop: every type of weights, one and many tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from hybridge.runtime.engines.onnxruntime.model_file import gather_weights
from hybridge.runtime.engines.onnxruntime.stored_experts import use_stored_experts
from tests.ops.expert_cases import CLAMPED, ExpertCase, expert_case, expert_loop
from tests.runtime.onnxruntime.quantized_graphs import Form, QuantizedGraph

pytestmark = pytest.mark.skipif(cpu_library().path is None, reason=f"no library: {cpu_library().reason}")
EXPERTS, HIDDEN, SIZE = 5, 64, 48
FORMS = {
    "e4m3 by row": Form(DType.FLOAT8E4M3FN, None),
    "e4m3 by 16": Form(DType.FLOAT8E4M3FN, 16, scales=DType.BFLOAT16),
    "nvfp4": Form(DType.FLOAT4E2M1, 16, scales=DType.FLOAT8E4M3FN, is_scaled_twice=True),
    "int8": Form(DType.INT8, 16),
    "int4": Form(DType.INT4, 16),
    "int4 with zeros": Form(DType.INT4, 16, zeros=True),
    "int8 with zeros": Form(DType.INT8, 16, zeros=True),
}


def graph(
    folder: Path, form: Form | DType, tokens: int, activation: str = "silu", gated: int = 1, **numbers: float
) -> tuple[QuantizedGraph, ExpertCase]:
    """One node, with gate and up as separate parts where they are quantised, and the case with its float64 values."""
    made = QuantizedGraph(folder)
    case = expert_case(1, tokens, EXPERTS, 3, HIDDEN, SIZE, gated, biased=tokens > 1)
    if isinstance(form, DType):
        stored = {name: getattr(case, name).astype(form.numpy) for name in ("up_weight", "down_weight")}
        weights = [made.stored(name, values, form) for name, values in stored.items()]
        for weight in weights:
            weight.type = ir.TensorType(ir.DataType.FLOAT)  # as widen_types leaves it
        case = replace(case, **{name: values.astype(np.float64) for name, values in stored.items()})
    else:
        up, meant_up = made.experts("up", form, (EXPERTS, SIZE * (1 + gated), HIDDEN), 1 + gated)
        down, meant_down = made.experts("down", form, (EXPERTS, HIDDEN, SIZE), 1)
        weights = [up, down]
        case = replace(case, up_weight=meant_up, down_weight=meant_down)
    inputs = [
        made.input("x", ir.DataType.FLOAT, "batch", "seq", HIDDEN),
        made.input("expert_ids", ir.DataType.INT32, "batch", "seq", 3),
        made.input("expert_weights", ir.DataType.FLOAT, "batch", "seq", 3),
    ]
    biases = [] if case.up_bias is None else [_constant(made, "up_bias", case.up_bias)]
    biases += [] if case.down_bias is None else [_constant(made, "down_bias", case.down_bias)]
    attributes: dict[str, Any] = {"activation": activation, "gated": gated, **numbers}
    node = ir.node("routed_experts", [*inputs, *weights, *biases], attributes, domain="trt_edgellm")
    node.outputs[0].shape = inputs[0].shape
    made.graph.append(node)
    made.output("y", node.outputs[0])
    return made, case


def _constant(made: QuantizedGraph, name: str, values: np.ndarray) -> ir.Value:
    tensor = ir.tensor(values.astype(np.float32), name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(values.shape), const_value=tensor)
    made.graph.register_initializer(value)
    return value


def feeds(case: ExpertCase) -> dict[str, np.ndarray]:
    weights = case.expert_weights.astype(np.float32)
    return {"x": case.x.astype(np.float32), "expert_ids": case.expert_ids, "expert_weights": weights}


def run(made: QuantizedGraph, given: dict[str, np.ndarray], exact: bool = False) -> np.ndarray:
    session, store, _ = made.session(exact, linear=True)
    (y,) = session.run(None, given)
    del store  # the session reads its arrays
    return np.asarray(y)


def error(
    found: np.ndarray, case: ExpertCase, activation: str = "silu", gated: int = 1, clamped: bool = False
) -> float:
    """The norm of the difference from float64, relative to that of the result."""
    given = replace(case, x=case.x.astype(np.float32).astype(np.float64))
    expected = expert_loop(given, activation, gated, clamped)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("tokens", [1, 3, 97])
@pytest.mark.parametrize("name", [*FORMS, "bfloat16", "float16"])
def test_exact_products(name: str, tokens: int, tmp_path: Path) -> None:
    made, case = graph(tmp_path, FORMS.get(name) or DType(name), tokens)
    session, store, types = made.session(exact=True, linear=True)
    assert types == ["RoutedExperts"]
    assert error(session.run(None, feeds(case))[0], case) < 1e-6
    # Numbers and scales, and no float32 copy.
    assert store.bytes <= 2.01 * (case.up_weight.size + case.down_weight.size)
    assert name not in ("bfloat16", "float16") or store.copied_bytes == 0


@pytest.mark.parametrize("name", ["nvfp4", "int8", "int4", "int4 with zeros", "int8 with zeros"])
def test_rounded_inputs(name: str, tmp_path: Path) -> None:
    made, case = graph(tmp_path, FORMS[name], 33)
    assert error(run(made, feeds(case)), case) < 0.03


@pytest.mark.parametrize(
    ("activation", "gated"),
    [("relu", 0), ("relu2", 0), ("silu", 0), ("relu2", 1), ("gelu", 1), ("gelu_pytorch_tanh", 0)],
)
def test_activations(activation: str, gated: int, tmp_path: Path) -> None:
    made, case = graph(tmp_path, DType.BFLOAT16, 7, activation, gated)
    assert error(run(made, feeds(case), exact=True), case, activation, gated) < 1e-6


def test_clamped_gates(tmp_path: Path) -> None:
    made, case = graph(tmp_path, DType.BFLOAT16, 7, **CLAMPED)
    assert error(run(made, feeds(case), exact=True), case, clamped=True) < 1e-6


def test_a_token_that_is_not_finite_stays_alone(tmp_path: Path) -> None:
    made, case = graph(tmp_path, FORMS["int4"], 40)
    given = feeds(case)
    session, store, _ = made.session(linear=True)
    (clean,) = session.run(None, given)
    given["x"][0, 7, 3] = np.nan
    (found,) = session.run(None, given)
    del store
    assert np.isnan(found[0, 7]).all()
    np.testing.assert_array_equal(np.delete(found, 7, 1), np.delete(clean, 7, 1))


def test_no_tokens_and_wrong_experts(tmp_path: Path) -> None:
    made, case = graph(tmp_path, FORMS["e4m3 by row"], 2)
    session, store, _ = made.session(linear=True)
    given = feeds(case)
    assert session.run(None, {name: array[:, :0] for name, array in given.items()})[0].shape == (1, 0, HIDDEN)
    for wrong in (-1, EXPERTS):
        given["expert_ids"][0, 1, 2] = wrong
        with pytest.raises(Exception, match="expected the numbers of experts"):
            session.run(None, given)
    del store


def test_other_experts_are_left_to_other_kernels(tmp_path: Path) -> None:
    for form in (Form(DType.INT4, 8), DType.FLOAT32):
        model = ir.Model(graph(tmp_path, form, 1)[0].graph, ir_version=10)
        gather_weights(model)
        use_stored_experts(model, exact=False)
        assert [node.op_type for node in model.graph if node.domain] == ["routed_experts"]
