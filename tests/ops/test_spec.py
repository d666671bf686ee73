"""The declarations and the check of a call."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.call_check import TensorType, check_call
from hybridge.trt_plugins.catalog import OPS, spec_of

F16, F32 = DType.FLOAT16, DType.FLOAT32
SSM, CONV = OPS["update_ssm_state"], OPS["causal_conv1d"]


def ssm_arguments(**changes: TensorType) -> list[TensorType | None]:
    base = {
        "x": TensorType(F16, ("b", "t", 6, 5)),
        "A": TensorType(F32, (6,)),
        "B": TensorType(F16, ("b", "t", 3, 7)),
        "C": TensorType(F16, ("b", "t", 3, 7)),
        "D": TensorType(F16, (6,)),
        "dt": TensorType(F16, ("b", "t", 6)),
        "dt_bias": TensorType(F32, (6,)),
        "state": TensorType(F32, ("b", 6, 5, 7)),
        "context_lengths": TensorType(DType.INT32, ("b",)),
    }
    return list({**base, **changes}.values())


def test_call_binds_dims_types_and_defaults() -> None:
    call = check_call(SSM, ssm_arguments(), {"time_step_min": 0.1})
    assert call.has_time
    assert call.dims == {
        "batch": None, "time": None, "heads": 6, "head_dim": 5, "groups": 3, "state_size": 7
    }  # fmt: skip
    assert call.types == {"T": F16, "U": F16, "V": F32, "S": F32}
    assert call.attributes == {
        "dt_softplus": 1, "time_step_min": 0.1, "time_step_max": math.inf, "chunk_size": 64
    }  # fmt: skip


def test_decode_form_has_no_time() -> None:
    decode = ssm_arguments(
        x=TensorType(F16, (2, 6, 5)),
        B=TensorType(F16, (2, 3, 7)),
        C=TensorType(F16, (2, 3, 7)),
        dt=TensorType(F16, (2, 6)),
    )
    assert not check_call(SSM, decode, {}).has_time


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"A": TensorType(F16, (6,))}, ("A of type float32", "float16")),
        ({"B": TensorType(F32, ("b", "t", 3, 7))}, ("B of type float16", "float32")),
        ({"D": TensorType(DType.BFLOAT16, (6,))}, ("D of type float32 or float16", "bfloat16")),
        ({"state": TensorType(DType.INT8, ("b", 6, 5, 7))}, ("state of type float32 or float16", "int8")),
        ({"dt": TensorType(F16, ("b", "t", 5))}, ("dt of shape [batch, time, 6]", "[b, t, 5]")),
        ({"dt": TensorType(F16, ("b", 6))}, ("dt of shape", "[b, 6]")),
        ({"context_lengths": TensorType(DType.INT64, ("b",))}, ("context_lengths of type int32", "int64")),
        ({"state": None}, ("input state", "none")),
    ],
    ids=str,
)
def test_wrong_argument_names_expected_and_found(changes: dict, words: tuple[str, str]) -> None:
    with pytest.raises(UnsupportedError) as error:
        check_call(SSM, ssm_arguments(**changes), {})
    assert all(word in str(error.value) for word in ("trt_edgellm::update_ssm_state", *words))


@pytest.mark.parametrize(
    "attributes",
    [{"activation": "gelu"}, {"activation": 1}, {"width": 4}],
    ids=str,
)
def test_wrong_attribute_is_refused(attributes: dict) -> None:
    with pytest.raises(UnsupportedError, match="causal_conv1d"):
        CONV.complete_attributes(attributes)


@pytest.mark.parametrize("attributes", [{"chunk_size": 0}, {"dt_softplus": 2}, {"time_step_max": math.nan}], ids=str)
def test_wrong_number_is_refused(attributes: dict) -> None:
    with pytest.raises(UnsupportedError, match="update_ssm_state"):
        SSM.complete_attributes(attributes)


def test_groups_must_divide_heads() -> None:
    with pytest.raises(UnsupportedError, match="groups 4 and heads 6"):
        SSM.check_dims({"groups": 4, "heads": 6})


@pytest.mark.parametrize(
    ("name", "dims", "runs"),
    [
        ("update_ssm_state", {"head_dim": 64, "state_size": 128}, True),
        ("update_ssm_state", {"head_dim": 256, "state_size": 8}, True),
        ("update_ssm_state", {"head_dim": 5, "state_size": 128}, False),
        ("update_ssm_state", {"head_dim": 64, "state_size": 264}, False),
        ("causal_conv1d", {"kernel": 2}, True),
        ("causal_conv1d", {"kernel": 9}, False),
        ("causal_conv1d", {"kernel": None}, True),
    ],
    ids=str,
)
def test_kernel_limits_are_data_apart_from_the_definition(name: str, dims: dict, runs: bool) -> None:
    spec = spec_of(name)
    spec.check_dims(dims)
    assert bool(spec.kernel_gaps(dims)) is not runs
    if not runs:
        with pytest.raises(UnsupportedError, match="plugins off"):
            spec.check_kernel_dims(dims)


def test_unknown_operator_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match="causal_conv1d, update_ssm_state"):
        spec_of("selective_copy")


def test_catalog_needs_neither_torch_nor_onnx() -> None:
    modules = "hybridge.trt_plugins.catalog, hybridge.trt_plugins.call_check"
    code = f"import sys, {modules}; print({{'torch', 'onnx'}} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
