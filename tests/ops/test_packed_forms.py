"""The packed form of every recurrent operator: eager and as ONNX function, against float64 step loops of its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import OPS, PACKED_OPS, spec_of
from hybridge.trt_plugins.specs.packed import is_packed, is_pool, packed_form
from tests.ops.cases import conv_case, delta_case, in_dtypes, rounded_case, scan_case, ssm_case
from tests.ops.oracle import conv_step_loop, delta_step_loop, relative_error, scan_step_loop, ssm_step_loop
from tests.ops.packed_calls import PackedCall, packed_call, packed_model, run_model
from tests.ops.test_mamba2_conv_scan import case_of, expected, in_types, types_of

# Rows of many tokens, of one and of none; the second half begins a chunk of the scans.
LENGTHS = (66, 1, 0, 7, 1)
CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], tuple[np.ndarray, ...]], dict[str, Any]]] = {
    "causal_conv1d": (
        lambda: conv_case(LENGTHS, 66), lambda case: conv_step_loop(case, "silu"), {"activation": "silu"}
    ),
    "update_ssm_state": (lambda: ssm_case(LENGTHS, 66), ssm_step_loop, {}),
    "gated_delta_rule": (lambda: delta_case(LENGTHS, 66), delta_step_loop, {}),
    "selective_scan": (lambda: scan_case(LENGTHS, 66), scan_step_loop, {}),
    "mamba2_conv_scan": (lambda: case_of(LENGTHS, 66), expected, {}),
}  # fmt: skip
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def typed_case(case: Any, op: str, dtype: str) -> tuple[Any, dict[str, str]]:
    """A case of the operator, rounded to the types of its inputs, and these."""
    if op == "mamba2_conv_scan":
        types = types_of(case, dtype)
        return in_types(case, types), types
    if dtype == "float64":
        return case, dict.fromkeys(in_dtypes(case, dtype), dtype)
    types = in_dtypes(case, dtype)
    return rounded_case(case, types), types


def typed(op: str, dtype: str) -> tuple[Any, dict[str, str]]:
    return typed_case(CASES[op][0](), op, dtype)


def check(call: PackedCall, case: Any, found: list[np.ndarray], dtype: str) -> None:
    """Rows and their slots as the step loop has them; every other slot as it was."""
    for output, value, reference in zip(PACKED_OPS[call.op].outputs, found, CASES[call.op][1](case), strict=True):
        if is_packed(output):
            assert relative_error(call.rows_of(value, reference), reference) < TOLERANCE[dtype], output.name
            continue
        assert relative_error(value[call.slots], reference) < TOLERANCE[dtype], output.name
        others = np.delete(value, call.slots, axis=0)
        assert np.isnan(others).all(), f"{output.name}: a slot without an owner was written"


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("op", CASES)
def test_eager_rows_equal_the_step_loop(op: str, dtype: str) -> None:
    torch_ops.register()
    case, types = typed(op, dtype)
    call = packed_call(op, case)
    tensors = [
        None if a is None else torch.from_numpy(a).to(getattr(torch, types.get(name, "int32")))
        for name, a in call.arrays.items()
    ]
    attributes = PACKED_OPS[op].complete_attributes(CASES[op][2]).values()
    found = getattr(torch.ops.trt_edgellm, op).packed(*tensors, *attributes)
    check(call, case, [value.to(torch.float64).numpy() for value in found], dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", CASES)
def test_onnx_function_equals_the_step_loop(op: str, dtype: str) -> None:
    pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
    case, types = typed(op, dtype)
    call = packed_call(op, case)
    weights = [call.arrays[name] for name in ("weight", "conv_weight") if name in call.arrays]
    sizes = {"conv_dim": weights[0].shape[0], "kernel": weights[0].shape[2]} if weights else {}
    check(call, case, run_model(packed_model(op, types, sizes, CASES[op][2]), call.arrays), dtype)


@pytest.mark.parametrize("op", ["causal_conv1d", "update_ssm_state"])
def test_dense_is_packed_with_regular_rows(op: str) -> None:
    torch_ops.register()
    case = conv_case((5, 5), 5) if op == "causal_conv1d" else ssm_case((5, 5), 5)
    attributes = PACKED_OPS[op].complete_attributes(CASES[op][2]).values()
    dense = [torch.from_numpy(a) for a in case.inputs() if a is not None]
    packed = [t.flatten(0, 1) if "time?" in spec.dims else t for t, spec in zip(dense, OPS[op].inputs, strict=True)]
    rows = [torch.tensor([0, 5, 10], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)]
    kernel = getattr(torch.ops.trt_edgellm, op)
    y, state = kernel(*dense, *attributes)
    y_packed, state_packed = kernel.packed(*packed[:-1], *rows, *attributes)
    torch.testing.assert_close(y_packed, y.flatten(0, 1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state_packed, state, rtol=1e-12, atol=1e-12)


def test_a_call_of_padding_rows_alone_changes_no_pool() -> None:
    pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
    case, types = typed("update_ssm_state", "float32")
    call = packed_call("update_ssm_state", case)
    arrays = {**call.arrays, "state_indices": np.full_like(call.arrays["state_indices"], -1)}
    _, pool = run_model(packed_model("update_ssm_state", types, {}, {}), arrays)
    before = call.arrays["state"]
    assert before is not None
    np.testing.assert_array_equal(pool.view(np.int32), before.astype(np.float32).view(np.int32))


def test_bounds_that_do_not_fit_the_rows_are_refused() -> None:
    torch_ops.register()
    case, _ = typed("causal_conv1d", "float64")
    arrays = packed_call("causal_conv1d", case).arrays
    tensors = [None if a is None else torch.from_numpy(a) for a in arrays.values()]
    tensors[4] = tensors[4][:-1]
    with pytest.raises(UnsupportedError, match="expected query_start_loc of 7 bounds for 6 rows, found 6"):
        torch.ops.trt_edgellm.causal_conv1d.packed(*tensors, "silu")


@pytest.mark.parametrize("op", CASES)
def test_schema_and_fake_agree_with_the_eager_form(op: str) -> None:
    torch_ops.register()
    case, types = typed(op, "float32")
    arrays = {name: None if a is None else np.nan_to_num(a) for name, a in packed_call(op, case).arrays.items()}
    tensors = [
        None if a is None else torch.from_numpy(a).to(getattr(torch, types.get(name, "int32")))
        for name, a in arrays.items()
    ]
    attributes = PACKED_OPS[op].complete_attributes(CASES[op][2]).values()
    kernel = getattr(torch.ops.trt_edgellm, op).packed
    torch.library.opcheck(kernel, (*tensors, *attributes), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("op", CASES)
def test_packed_declaration_differs_in_rows_alone(op: str) -> None:
    dense, packed = OPS[op], spec_of(op, 2)
    assert packed == packed_form(dense) and packed.version == 2
    assert (packed.attributes, packed.type_variables) == (dense.attributes, dense.type_variables)
    assert [t.name for t in packed.inputs[-2:]] == ["query_start_loc", "state_indices"]
    assert [t.name for t in packed.inputs[:-2]] == [t.name for t in dense.inputs[:-1]]
    assert not any("batch" in t.dims for t in (*packed.inputs, *packed.outputs))
    assert all(is_pool(packed.inputs[packed.output_source(output)]) for output in packed.outputs[1:])


def test_unknown_version_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="version 1 or 2 or 3 of the domain trt_edgellm, found 4"):
        spec_of("causal_conv1d", 4)
    with pytest.raises(UnsupportedError, match="found paged_attention"):
        spec_of("paged_attention")
