"""``rounded_experts``: the eager form and the ONNX function against a loop over tokens and experts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper

from hybridge.artifact.errors import UnsupportedError
from hybridge.runtime.engines.torch.ops.rounded_experts import ExpertRounding
from hybridge.runtime.engines.torch.ops.routing import ExpertMatrices, RoutedExperts
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import OPS
from hybridge.trt_plugins.functions import attach_functions
from hybridge.trt_plugins.specs.routed_experts import ExpertActivation
from tests.ops.expert_cases import ExpertCase, activation, expert_case, expert_model
from tests.ops.oracle import relative_error

ort = pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels  # noqa: E402 (needs onnxruntime)
from hybridge.runtime.engines.onnxruntime.opset import lower_opset  # noqa: E402

FORMS = [("int8", 0), ("int8", -1), ("int8", 8), ("fp8", 0), ("fp8", -1), ("fp8", 16), ("nvfp4", 16)]
UP, DOWN = (np.linspace(low, 3 * low, 5).astype(np.float32) for low in (0.005, 0.01))
TYPES = {"int8": (np.int8, 127), "fp8": (ml_dtypes.float8_e4m3fn, 448), "nvfp4": (ml_dtypes.float4_e2m1fn, 6)}


def rounded(x: np.ndarray, scale: np.float32, rounding: str, group: int) -> np.ndarray:
    """x [features] in float32, each group on its own."""
    kind, largest = TYPES[rounding]
    parts = []
    for part in np.split(x.astype(np.float32), len(x) // group if group > 0 else 1):
        own = scale
        if group >= 0:
            own = np.float32(np.abs(part).max()) / np.float32(largest)
        if rounding == "nvfp4":
            own = np.float32(ml_dtypes.float8_e4m3fn(min(own / scale, np.float32(448)))) * scale
        numbers: np.ndarray = part / own if own > 0 else np.zeros_like(part)
        if rounding == "int8":
            numbers = np.round(numbers)
        parts.append(np.clip(numbers, -largest - (rounding == "int8"), largest).astype(kind).astype(np.float32) * own)
    return np.concatenate(parts)


def expected(case: ExpertCase, gated: int, rounding: str, group: int) -> np.ndarray:
    y = np.zeros_like(case.x)
    for place in np.ndindex(case.expert_ids.shape):
        expert = case.expert_ids[place]
        up = case.up_weight[expert].astype(np.float32) @ rounded(case.x[place[:2]], UP[expert], rounding, group)
        half = len(up) // 2
        inner: np.ndarray = activation("silu", up[:half]) * up[half:] if gated else activation("silu", up)
        inputs = rounded(inner, DOWN[expert], rounding, group)
        y[place[:2]] += case.expert_weights[place] * (case.down_weight[expert].astype(np.float32) @ inputs)
    return y


PLAIN = (1.0, float("inf"), 0.0)


def inputs_of(case: ExpertCase) -> dict[str, np.ndarray]:
    floats = {n: a if n == "expert_ids" else a.astype(np.float32) for n, a in case.arrays().items()}
    return {**floats, "up_input_scale": UP, "down_input_scale": DOWN}


def rounded_model(gated: int, rounding: str, group: int, data: str = "float32") -> onnx.ModelProto:
    model = expert_model(data, "silu", gated)
    node = model.graph.node[0]
    node.op_type = "rounded_experts"
    for name in ("up_input_scale", "down_input_scale"):
        node.input.append(name)
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["experts"]))
    node.attribute.extend([helper.make_attribute("rounding", rounding), helper.make_attribute("group", group)])
    attach_functions(model)
    return model


@cache
def session(gated: int, rounding: str, group: int) -> Any:
    model = rounded_model(gated, rounding, group)
    onnx.checker.check_model(model)
    lowered = ir.serde.deserialize_model(model)
    lower_opset(lowered, installed_kernels())
    return ort.InferenceSession(ir.to_proto(lowered).SerializeToString(), providers=["CPUExecutionProvider"])


def eager(case: ExpertCase, gated: int, rounding: str, group: int) -> np.ndarray:
    torch_ops.register()
    arguments = [torch.from_numpy(array) for array in inputs_of(case).values()]
    return torch.ops.trt_edgellm.rounded_experts(*arguments, None, None, "silu", gated, *PLAIN, rounding, group).numpy()


@pytest.mark.parametrize(("rounding", "group"), FORMS)
@pytest.mark.parametrize("gated", [0, 1])
def test_both_forms_round_as_the_type_does(rounding: str, group: int, gated: int) -> None:
    case = expert_case(hidden=32, intermediate=48, gated=gated)
    x = case.x.copy()
    x[0, 1] = 0.0  # no scale to divide by
    case = replace(case, x=x)
    loop = expected(case, gated, rounding, group)
    found = session(gated, rounding, group).run(None, inputs_of(case))[0]
    assert relative_error(found, loop) < 1e-6
    assert relative_error(eager(case, gated, rounding, group), loop) < 1e-6
    assert not found[0, 1].any()


def test_large_inputs_saturate_at_a_static_scale() -> None:
    case = expert_case(hidden=32, intermediate=48)
    case = replace(case, x=case.x * 1e4)
    for rounding in ("int8", "fp8"):
        loop = expected(case, 1, rounding, -1)
        assert relative_error(session(1, rounding, -1).run(None, inputs_of(case))[0], loop) < 1e-6
        assert relative_error(eager(case, 1, rounding, -1), loop) < 1e-6


def test_a_token_that_is_nan_reaches_no_other() -> None:
    case = expert_case(time=6, hidden=32, intermediate=48)
    x = case.x.copy()
    x[0, 3:] = np.nan
    clean, dirty = (session(1, "fp8", 0).run(None, inputs_of(c))[0] for c in (case, replace(case, x=x)))
    np.testing.assert_array_equal(dirty[1], clean[1])
    np.testing.assert_array_equal(dirty[0, :3], clean[0, :3])


def test_schema_and_fake_agree_with_the_eager_form() -> None:
    torch_ops.register()
    arguments = [torch.from_numpy(array) for array in inputs_of(expert_case(hidden=32, intermediate=16)).values()]
    op = torch.ops.trt_edgellm.rounded_experts.default
    torch.library.opcheck(
        op, (*arguments, None, None, "silu", 1, *PLAIN, "nvfp4", 16), test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.parametrize("form", ["gathered", "grouped", "by_expert"])
@pytest.mark.parametrize(("rounding", "group"), FORMS)
def test_forms_of_the_torch_engine(rounding: str, group: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "grouped" and not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("needs torch 2.10: grouped_mm")
    case = expert_case(time=11, hidden=32, intermediate=48)
    x, ids, weights, up, down, *scales = (torch.from_numpy(array) for array in inputs_of(case).values())
    experts = RoutedExperts(ExpertActivation("silu", True))
    monkeypatch.setattr(experts, "by_expert", getattr(experts, form))
    rounds = ExpertRounding(rounding, group).of(*scales)
    y = experts(x, ids, weights, ExpertMatrices(up, down, rounds=rounds))
    assert relative_error(y.numpy(), expected(case, 1, rounding, group)) < 1e-6


def test_unknown_types_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="rounding to be one of 'int8', 'fp8', 'nvfp4', found 'int4'"):
        OPS["rounded_experts"].complete_attributes({"rounding": "int4"})
