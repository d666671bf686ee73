"""Cases of one-token ``update_ssm_state``: the shapes of Nemotron-H and Granite 4, with a state updated in place.

float32 and bfloat16 states, and beside them the experimental ones of 8 bits, int8 and e4m3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.kernels.case import KernelCase, Prepared
from benchmarks.kernels.peers import peer_times
from benchmarks.kernels.tensor_call import TensorCall, layout_of
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.call import OpCall
from hybridge.trt_plugins.kernels.catalog import plan
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.ops.update_ssm_state_8bit import plan_8bit
from hybridge.trt_plugins.reference.quantized_state import LARGEST, exact_state, quantized_state
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state

GROUP = "update_ssm_state_decode"
HEAD_DIM, STATE_SIZE = 64, 128
# y is bfloat16; a state of int8 is rounded to 1/254 of its row's largest magnitude, of e4m3 to 1/16 of the value.
TOLERANCE = 3e-3
STATE_TOLERANCE = {torch.int8: 1e-2, torch.float8_e4m3fn: 3.5e-2}
AT_LEAST = {1: 1.3, 8: 1.1}
BANDWIDTH_SINCE, BANDWIDTH_SHARE = 64, 0.9
STATES = {"f32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8, "e4m3": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Model:
    """heads of HEAD_DIM channels in groups that share B and C."""

    heads: int
    groups: int


MODELS = {"Nemotron": Model(128, 8), "Granite": Model(48, 1)}


def cases() -> Iterator[KernelCase]:
    """1 to 256 rows of Nemotron's mixer, 1 to 64 of Granite's."""
    for model, most in (("Nemotron", 256), ("Granite", 64)):
        for rows in (1, 8, 64, 256):
            if rows <= most:
                yield from (_case(model, rows, state) for state in STATES)


def _case(model: str, rows: int, state: str) -> KernelCase:
    name, sizes = f"{model} b{rows} {state} state", MODELS[model]
    dtype = STATES[state]
    experimental = dtype in LARGEST
    return KernelCase(
        name,
        _bytes(sizes, rows, dtype.itemsize, experimental),
        STATE_TOLERANCE.get(dtype, TOLERANCE),
        lambda: _prepared(sizes, rows, dtype),
        peer_times(GROUP, name),
        None if experimental else AT_LEAST.get(rows, 1.0),
        BANDWIDTH_SHARE if rows >= BANDWIDTH_SINCE and not experimental else None,
    )


def _bytes(model: Model, rows: int, item: int, scaled: bool) -> int:
    state_rows = rows * model.heads * HEAD_DIM
    tokens = 2 * rows * (2 * model.heads * HEAD_DIM + 2 * model.groups * STATE_SIZE + model.heads)
    return 2 * state_rows * (STATE_SIZE * item + (4 if scaled else 0)) + tokens + 12 * model.heads


def _prepared(model: Model, rows: int, dtype: torch.dtype) -> Prepared:
    inputs = _inputs(model, rows, dtype)
    y = torch.full((rows, model.heads, HEAD_DIM), float("nan"), dtype=torch.bfloat16, device="cuda")
    spec = spec_of("update_ssm_state")
    layouts = tuple(layout_of(tensor) for tensor in inputs[:9])
    call = OpCall(spec, layouts, (layout_of(y), layouts[7]), spec.complete_attributes({}))
    device = KernelDevice.current()
    planned = (plan_8bit if dtype in LARGEST else plan)(call, device.traits)
    run = TensorCall(device, planned, inputs, [y, inputs[7], inputs[-1]])

    def error() -> float:
        arguments: list[Any] = [
            *(tensor.double() for tensor in inputs[:7]),
            _exact(inputs),
            inputs[8],
            1,
            0.0,
            math.inf,
            1,
        ]
        expected_y, expected_state = update_ssm_state(*arguments)
        run()
        return max(_relative(y.double(), expected_y), _relative(_exact(inputs), expected_state))

    return Prepared(run, error)


def _inputs(model: Model, rows: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """The operator's inputs, x, B, C and dt as slices of wider tensors, and the scales of a state of 8 bits."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda")

    inner, width = model.heads * HEAD_DIM, model.groups * STATE_SIZE
    mixed = normal(rows, inner + 2 * width).to(torch.bfloat16).split([inner, width, width], -1)
    dt = normal(rows, 2 * inner + 2 * width + model.heads).to(torch.bfloat16)[:, -model.heads :]
    state, scale = normal(rows, model.heads, HEAD_DIM, STATE_SIZE), torch.empty(0, device="cuda")
    if dtype in LARGEST:
        state, scale = quantized_state(state, dtype)
    x, (B, C) = mixed[0].unflatten(-1, (model.heads, HEAD_DIM)), (t.unflatten(-1, (-1, STATE_SIZE)) for t in mixed[1:])
    A = -8 * torch.rand(model.heads, device="cuda")
    lengths = torch.ones(rows, dtype=torch.int32, device="cuda")
    return [x, A, B, C, normal(model.heads), dt, normal(model.heads), state.to(dtype), lengths, scale]


def _exact(inputs: list[torch.Tensor]) -> torch.Tensor:
    """The state as float64."""
    state, scale = inputs[7], inputs[-1]
    return exact_state(state, scale) if scale.numel() else state.double()


def _relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
