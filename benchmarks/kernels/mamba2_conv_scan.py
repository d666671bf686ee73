"""Cases of ``mamba2_conv_scan`` at decode, and of its parts as separate calls: convolution, state update, gate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from benchmarks.kernels.case import KernelCase, Prepared
from benchmarks.kernels.tensor_call import TensorCall, layout_of
from benchmarks.kernels.update_ssm_state_decode import HEAD_DIM, MODELS, STATE_SIZE, Model
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.ops.mamba2_conv_scan import plan
from hybridge.trt_plugins.kernels.ops.mamba2_parts import plan_separate_parts
from hybridge.trt_plugins.reference.causal_conv1d import causal_conv1d
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state

KERNEL = 4
TOLERANCE = 8e-3
STATES = {"f32": torch.float32, "bf16": torch.bfloat16}
Planner = Callable[[OpCall, DeviceTraits], CallPlan]
PLANNERS: dict[str, Planner] = {"joined": plan, "separate": plan_separate_parts}


def cases() -> Iterator[KernelCase]:
    """1, 8 and 64 rows, the operator and then its parts."""
    for model in MODELS:
        for rows in (1, 8, 64):
            for state in STATES:
                yield from (_case(model, rows, state, form) for form in PLANNERS)


def _case(model: str, rows: int, state: str, form: str) -> KernelCase:
    sizes, dtype = MODELS[model], STATES[state]
    inner, channels = _channels(sizes)
    tokens = 2 * rows * (2 * inner + channels + sizes.heads + 2 * KERNEL * channels)
    moved = 2 * rows * inner * STATE_SIZE * dtype.itemsize + tokens + 2 * channels * (KERNEL + 1)
    name = f"{model} b{rows} {state} state, {form}"
    return KernelCase(name, moved, TOLERANCE, lambda: _prepared(sizes, rows, dtype, PLANNERS[form]))


def _channels(model: Model) -> tuple[int, int]:
    inner = model.heads * HEAD_DIM
    return inner, inner + 2 * model.groups * STATE_SIZE


def _prepared(model: Model, rows: int, dtype: torch.dtype, planner: Planner) -> Prepared:
    inputs = _inputs(model, rows, dtype)
    inner, _ = _channels(model)
    y = torch.full((rows, inner), float("nan"), dtype=torch.bfloat16, device="cuda")
    outputs = [y, inputs[8], inputs[9]]
    spec = spec_of("mamba2_conv_scan")
    layouts = tuple(layout_of(tensor) for tensor in inputs), tuple(layout_of(tensor) for tensor in outputs)
    device = KernelDevice.current()
    chosen = planner(OpCall(spec, *layouts, spec.complete_attributes({})), device.traits)
    run = TensorCall(device, chosen, inputs, outputs)

    def error() -> float:
        expected = _expected(model, inputs, rounded=len(chosen.launches) > 1)
        run()
        pairs = zip(outputs, expected, strict=True)
        return max(float((found.double() - wanted).norm() / wanted.norm()) for found, wanted in pairs)

    return Prepared(run, error)


def _expected(model: Model, inputs: list[torch.Tensor], rounded: bool) -> tuple[torch.Tensor, ...]:
    """y and both states in float64. rounded: x, B and C are bfloat16, as several launches hand them on.

    With one group all of y has the same C @ B as a factor. Where its terms cancel, their rounding is large beside it.
    """
    conv_input, gate, dt, weight, bias, A, D, dt_bias, conv_state, state = (tensor.double() for tensor in inputs[:10])
    inner, _ = _channels(model)
    mixed, conv_after = causal_conv1d(conv_input, weight, bias, conv_state, inputs[10], "silu")
    if rounded:
        mixed = mixed.to(torch.bfloat16).double()
    x, B, C = mixed.split([inner, model.groups * STATE_SIZE, model.groups * STATE_SIZE], -1)
    groups = (model.groups, STATE_SIZE)
    x, B, C = x.unflatten(-1, (model.heads, HEAD_DIM)), B.unflatten(-1, groups), C.unflatten(-1, groups)
    y, after = update_ssm_state(x, A, B, C, D, dt, dt_bias, state, inputs[10], 1, 0.0, math.inf, 1)
    return y.flatten(-2) * torch.nn.functional.silu(gate), conv_after, after


def _inputs(model: Model, rows: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """In the operator's order; gate, conv_input and dt are slices of one tensor, as of a projection."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda")

    bf16 = torch.bfloat16
    inner, channels = _channels(model)
    projected = normal(rows, inner + channels + model.heads).to(bf16)
    gate, conv_input, dt = projected.split([inner, channels, model.heads], -1)
    weight, bias = (normal(channels, 1, KERNEL) / 2).to(bf16), normal(channels).to(bf16)
    A, D, dt_bias = -8 * torch.rand(model.heads, device="cuda"), normal(model.heads), normal(model.heads)
    conv_state = normal(rows, channels, KERNEL).to(bf16)
    state = normal(rows, model.heads, HEAD_DIM, STATE_SIZE).to(dtype)
    lengths = torch.ones(rows, dtype=torch.int32, device="cuda")
    return [conv_input, gate, dt, weight, bias, A, D, dt_bias, conv_state, state, lengths]
