"""``routed_experts``: the eager form and the ONNX function against a loop over tokens and experts in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import OPS
from hybridge.trt_plugins.specs.routed_experts import EXPERT_ACTIVATIONS
from tests.ops.cases import rounded
from tests.ops.expert_cases import CLAMPED, ExpertCase, expert_case, expert_loop, expert_model
from tests.ops.oracle import relative_error
from tests.support.effort import examples

ort = pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels  # noqa: E402 (needs onnxruntime)
from hybridge.runtime.engines.onnxruntime.opset import lower_opset  # noqa: E402

FORMS = [(name, gated) for name in EXPERT_ACTIVATIONS for gated in (0, 1)]


PLAIN = (1.0, float("inf"), 0.0)


def eager(
    case: ExpertCase, dtype: torch.dtype, name: str = "silu", gated: int = 1, numbers: tuple = PLAIN
) -> np.ndarray:
    torch_ops.register()
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    x, ids, weights, *matrices = (torch.from_numpy(array) for array in case.arrays().values())
    experts = [matrix.to(dtype) for matrix in matrices] + [None] * (4 - len(matrices))
    arguments = (x.to(dtype), ids, weights.to(wide), *experts, name, gated, *numbers)
    return torch.ops.trt_edgellm.routed_experts(*arguments).double().numpy()


@cache
def session(
    data: str, name: str, gated: int, has_time: bool = True, version: int = 1, biased: bool = False, **numbers: float
) -> Any:
    model = expert_model(data, name, gated, has_time, version, biased, **numbers)
    onnx.checker.check_model(model)
    lowered = ir.serde.deserialize_model(model)
    lower_opset(lowered, installed_kernels())
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(ir.to_proto(lowered).SerializeToString(), options, providers=["CPUExecutionProvider"])


def function(case: ExpertCase, name: str = "silu", gated: int = 1, data: str = "float32", **form: Any) -> np.ndarray:
    floats = {n: a.astype(np.float32 if n == "expert_weights" else data) for n, a in case.arrays().items()}
    return session(data, name, gated, **form).run(None, {**floats, "expert_ids": case.expert_ids})[0]


@pytest.mark.parametrize(("name", "gated"), FORMS)
def test_eager_form(name: str, gated: int) -> None:
    case = expert_case(gated=gated)
    assert relative_error(eager(case, torch.float64, name, gated), expert_loop(case, name, gated)) < 1e-12


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 4e-4), ("bfloat16", 2.5e-3), ("float32", 1e-6)])
def test_eager_form_in_other_types(dtype: str, tolerance: float) -> None:
    case = expert_case()
    case = replace(case, **{n: rounded(getattr(case, n), dtype) for n in ("x", "up_weight", "down_weight")})
    assert relative_error(eager(case, getattr(torch, dtype)), expert_loop(case, "silu", 1)) < tolerance


@pytest.mark.parametrize(("name", "gated"), FORMS)
def test_function(name: str, gated: int) -> None:
    case = expert_case(gated=gated)
    assert relative_error(function(case, name, gated), expert_loop(case, name, gated)) < 1e-6


def test_biases_and_a_clamped_gate() -> None:
    case = expert_case(biased=True)
    expected = expert_loop(case, "silu", 1, clamped=True)
    assert relative_error(eager(case, torch.float64, numbers=tuple(CLAMPED.values())), expected) < 1e-12
    assert relative_error(function(case, biased=True, **CLAMPED), expected) < 1e-6
    case = expert_case(biased=True, gated=0)
    expected = expert_loop(case, "relu", 0)
    assert relative_error(eager(case, torch.float64, "relu", 0), expected) < 1e-12
    assert relative_error(function(case, "relu", 0, biased=True), expected) < 1e-6


def test_function_in_float16() -> None:
    case = expert_case(time=33)
    case = replace(case, **{n: rounded(getattr(case, n), "float16") for n in ("x", "up_weight", "down_weight")})
    assert relative_error(function(case, data="float16"), expert_loop(case, "silu", 1)) < 2e-3


@settings(max_examples=examples(25), deadline=None)
@given(
    experts=st.integers(1, 7),
    top_k=st.integers(1, 3),
    hidden=st.integers(1, 9),
    intermediate=st.integers(1, 9),
    batch=st.integers(1, 3),
    time=st.integers(1, 40),
    favourite=st.booleans(),
)
def test_any_size(experts: int, top_k: int, favourite: bool, **sizes: int) -> None:
    """``favourite`` fills one expert's blocks with a route of every token."""
    case = expert_case(experts=experts, top_k=min(top_k, experts), favourite=favourite, **sizes)
    assert relative_error(function(case), expert_loop(case, "silu", 1)) < 1e-5


@pytest.mark.parametrize("version", [1, 2])
def test_without_a_token_axis(version: int) -> None:
    """One token a row, and packed tokens, which are the same to this operator."""
    case = expert_case(batch=11, time=1)
    tokens = {n: getattr(case, n)[:, 0] for n in ("x", "expert_ids", "expert_weights")}
    expected = expert_loop(case, "silu", 1)[:, 0]
    assert relative_error(function(replace(case, **tokens), has_time=False, version=version), expected) < 1e-6
    assert relative_error(eager(replace(case, **tokens), torch.float32), expected) < 1e-6


def test_a_token_that_is_nan_reaches_no_other() -> None:
    case = expert_case(time=6)
    x = case.x.copy()
    x[0, 3:] = np.nan
    dirty = replace(case, x=x)
    for run in (function, lambda c: eager(c, torch.float32)):
        np.testing.assert_array_equal(run(dirty)[1], run(case)[1])
        np.testing.assert_array_equal(run(dirty)[0, :3], run(case)[0, :3])
        assert np.isnan(run(dirty)[0, 3:]).all()


def test_eager_tokens_do_not_depend_on_the_choices_of_others() -> None:
    case = expert_case(time=9, experts=7)
    ids = case.expert_ids.copy()
    ids[0, 4:] = (ids[0, 4:] + 3) % 7
    before, after = eager(case, torch.float32), eager(replace(case, expert_ids=ids), torch.float32)
    np.testing.assert_array_equal(before[0, :4], after[0, :4])
    assert not np.array_equal(before[0, 4:], after[0, 4:])


def test_schema_and_fake_agree_with_the_eager_form() -> None:
    torch_ops.register()
    x, ids, weights, up, down = (torch.from_numpy(array) for array in expert_case().arrays().values())
    arguments = (x.bfloat16(), ids, weights.float(), up.bfloat16(), down.bfloat16(), None, None, "gelu", 1, *PLAIN)
    op = torch.ops.trt_edgellm.routed_experts.default
    torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_faketensor"))


def test_sizes_that_contradict_the_form_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="up_weight of 6 rows an expert with gated 0, found 12"):
        eager(expert_case(), torch.float32, gated=0)
    with pytest.raises(UnsupportedError, match="intermediate to divide up_size"):
        OPS["routed_experts"].check_dims({"intermediate": 6, "up_size": 9})
