"""Faces of ``mamba2_conv_scan`` that need no GPU: eager, fake and ONNX function against the float64 step loops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins import torch_ops
from tests.ops.cases import rounded
from tests.ops.node_model import node_model
from tests.ops.oracle import ConvCase, SsmCase, conv_step_loop, relative_error, ssm_step_loop

OP = "mamba2_conv_scan"
ATTRIBUTES: dict[str, Any] = {"activation": "silu", "dt_softplus": 1, "time_step_min": 0.0, "time_step_max": np.inf}
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 4e-3}


@dataclass(frozen=True)
class Case:
    """Inputs in declared order, float64 and int32; the token-wise ones are [batch, time, channels]."""

    conv_input: np.ndarray
    gate: np.ndarray
    dt: np.ndarray
    conv_weight: np.ndarray
    conv_bias: np.ndarray | None
    A: np.ndarray
    D: np.ndarray
    dt_bias: np.ndarray
    conv_state: np.ndarray
    state: np.ndarray
    context_lengths: np.ndarray


TOKEN_WISE = ("conv_input", "gate", "dt")
FLOAT32 = ("A", "D", "dt_bias", "state")


def case_of(lengths: tuple[int, ...], time: int, groups: int = 2, bias: bool = True, seed: int = 0) -> Case:
    rng, batch, heads, head_dim, state_size, kernel = np.random.default_rng(seed), len(lengths), 4, 5, 3, 4
    channels = heads * head_dim + 2 * groups * state_size
    return Case(
        rng.standard_normal((batch, time, channels)),
        rng.standard_normal((batch, time, heads * head_dim)),
        rng.standard_normal((batch, time, heads)) - 2.0,
        rng.standard_normal((channels, 1, kernel)) / 2.0,
        rng.standard_normal(channels) if bias else None,
        -rng.uniform(0.01, 16.0, heads),
        rng.standard_normal(heads),
        rng.standard_normal(heads),
        rng.standard_normal((batch, channels, kernel)),
        rng.standard_normal((batch, heads, head_dim, state_size)),
        np.array(lengths, dtype=np.int32),
    )


def expected(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The step loops of the two operators, then the gate."""
    conv = ConvCase(case.conv_input, case.conv_weight, case.conv_bias, case.conv_state, case.context_lengths)
    mixed, conv_state = conv_step_loop(conv, "silu")
    (batch, time), (_, heads, head_dim, state_size) = mixed.shape[:2], case.state.shape
    inner = heads * head_dim
    x, B, C = np.split(mixed, [inner, (inner + mixed.shape[2]) // 2], axis=2)
    groups = B.shape[2] // state_size
    B, C = (part.reshape(batch, time, groups, state_size) for part in (B, C))
    tokens = x.reshape(batch, time, heads, head_dim)
    y, state = ssm_step_loop(
        SsmCase(tokens, case.A, B, C, case.D, case.dt, case.dt_bias, case.state, case.context_lengths)
    )
    return y.reshape(batch, time, inner) * case.gate / (1.0 + np.exp(-case.gate)), conv_state, state


def types_of(case: Case, dtype: str) -> dict[str, str]:
    names = [name for name, value in vars(case).items() if value is not None and name != "context_lengths"]
    return {name: "float32" if name in FLOAT32 and dtype != "float64" else dtype for name in names}


def in_types(case: Case, types: dict[str, str]) -> Case:
    """The case as an operator of these types sees it."""
    return replace(case, **{name: rounded(getattr(case, name), dtype) for name, dtype in types.items()})


def check(case: Case, outputs: tuple[np.ndarray, ...], dtype: str) -> None:
    for found, wanted, name in zip(outputs, expected(case), ("y", "conv_state", "state"), strict=True):
        if wanted.any():
            assert (
                relative_error(found, wanted)
                < TOLERANCE["float32" if name == "state" and dtype != "float64" else dtype]
            )


def eager(case: Case, types: dict[str, str], has_time: bool = True) -> tuple[np.ndarray, ...]:
    values = arguments(case, types, has_time)
    return tuple(tensor.double().numpy() for tensor in getattr(torch.ops.trt_edgellm, OP)(*values))


def arguments(case: Case, types: dict[str, str], has_time: bool = True) -> list[Any]:
    torch_ops.register()
    tensors: list[Any] = []
    for name, value in vars(case).items():
        tensor = None if value is None else torch.from_numpy(value).to(getattr(torch, types.get(name, "int32")))
        tensors.append(tensor[:, 0] if tensor is not None and name in TOKEN_WISE and not has_time else tensor)
    return [*tensors, *ATTRIBUTES.values(), 64]


def poisoned(case: Case) -> Case:
    """NaN in the tokens past a row's length."""
    changed = {name: getattr(case, name).copy() for name in TOKEN_WISE}
    for tokens in changed.values():
        for row, length in enumerate(case.context_lengths):
            tokens[row, length:] = np.nan
    return replace(case, **changed)


def without_nan(case: Case) -> Case:
    return replace(case, **{name: np.nan_to_num(getattr(case, name)) for name in TOKEN_WISE})


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("time", [1, 5, 65, 130])
def test_eager_equals_the_step_loops(time: int, dtype: str) -> None:
    case = case_of((time, time // 2, 0), time)
    types = types_of(case, dtype)
    case = in_types(case, types) if dtype != "float64" else case
    check(without_nan(case), eager(poisoned(case), types), dtype)


@pytest.mark.parametrize("change", [{"groups": 1}, {"groups": 4}, {"bias": False}], ids=str)
def test_eager_groups_and_bias(change: dict[str, Any]) -> None:
    case = case_of((5, 3), 5, **change)
    check(case, eager(case, types_of(case, "float64")), "float64")


def test_decode_form() -> None:
    case = case_of((1, 0, 1), 1)
    y, conv_state, state = eager(case, types_of(case, "float64"), has_time=False)
    check(case, (y[:, None], conv_state, state), "float64")


def test_schema_and_fake_agree_with_the_eager_form() -> None:
    for bias in (True, False):
        case = case_of((5, 2), 5, bias=bias)
        torch_ops.register()
        op = getattr(torch.ops.trt_edgellm, OP).default
        values = tuple(arguments(case, types_of(case, "float32")))
        torch.library.opcheck(op, values, test_utils=("test_schema", "test_faketensor"))


def test_channels_that_are_no_groups_are_refused() -> None:
    case = case_of((5,), 5)
    cut = {name: getattr(case, name)[..., :-1] for name in ("conv_input", "conv_bias")}
    cut |= {name: getattr(case, name)[:, :-1] for name in ("conv_state",)} | {"conv_weight": case.conv_weight[:-1]}
    with pytest.raises(UnsupportedError, match="groups divides 4, found 20 and 31"):
        eager(replace(case, **cut), types_of(case, "float32"))


@cache
def session(types: tuple[tuple[str, str], ...], has_time: bool, channels: int) -> Any:
    ort = pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
    from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
    from hybridge.runtime.engines.onnxruntime.opset import lower_opset

    model = node_model(OP, dict(types), {"conv_dim": channels, "kernel": 4}, ATTRIBUTES, has_time, wide_interface=True)
    onnx.checker.check_model(model)
    lowered = ir.serde.deserialize_model(model)
    lower_opset(lowered, installed_kernels())
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(ir.to_proto(lowered).SerializeToString(), options, providers=["CPUExecutionProvider"])


def function(case: Case, types: dict[str, str], has_time: bool = True) -> tuple[np.ndarray, ...]:
    feeds: dict[str, np.ndarray] = {"context_lengths": case.context_lengths}
    for name in types:
        value = getattr(case, name).astype(np.float32)
        feeds[f"{name}_wide"] = value[:, 0] if name in TOKEN_WISE and not has_time else value
    return tuple(session(tuple(types.items()), has_time, case.conv_input.shape[2]).run(None, feeds))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("time", [1, 5, 65])
def test_function_equals_the_step_loops(time: int, dtype: str) -> None:
    case = case_of((time, time // 2, 0), time)
    types = types_of(case, dtype)
    case = in_types(case, types)
    check(without_nan(case), function(poisoned(case), types), dtype)


@pytest.mark.parametrize("change", [{"groups": 1}, {"bias": False}], ids=str)
def test_function_groups_and_bias(change: dict[str, Any]) -> None:
    case = case_of((1, 0, 1), 1, **change)
    types = types_of(case, "float32")
    y, conv_state, state = function(in_types(case, types), types, has_time=False)
    check(in_types(case, types), (y[:, None], conv_state, state), "float32")
