"""Cases of ``mamba2_conv_scan`` at decode: convolution, state update and gate in one launch, and in two."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.peers import Peer
from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.tensor_call import Planner, TensorCall, int32, normal, operator_call, poisoned, worst_error
from benchmarks.kernels.update_ssm_state import HEAD_DIM, MODELS, STATE_SIZE, Model
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.kernels.ops.mamba2_conv_scan import PARTS, plan
from hybridge.trt_plugins.reference.causal_conv1d import causal_conv1d
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state

KERNEL = 4
TOLERANCE = 8e-3
PEER = "two kernels"
STATES = {"f32": torch.float32, "bf16": torch.bfloat16}


def cases() -> Iterator[KernelCase]:
    """1, 8 and 64 rows."""
    for name, model in MODELS.items():
        for rows in (1, 8, 64):
            for state, dtype in STATES.items():
                channels = model.channels
                tokens = 2 * rows * (2 * model.inner + channels + model.heads + 2 * KERNEL * channels)
                moved = 2 * rows * model.inner * STATE_SIZE * dtype.itemsize + tokens + 2 * channels * (KERNEL + 1)
                case = f"{name} b{rows} {state} state, joined"
                prepare = partial(_prepared, model, rows, dtype)
                peers = partial(_peer, model, rows, dtype)
                yield KernelCase(case, moved, TOLERANCE, prepare, at_least=1.0, peers=peers)


def _prepared(model: Model, rows: int, dtype: torch.dtype, planner: Planner = plan) -> Prepared:
    run, inputs, outputs = _call(model, rows, dtype, planner)

    def error() -> float:
        expected = _expected(model, inputs, rounded=run.launches > 1)
        run()
        return worst_error(outputs, expected)

    return Prepared(run, error)


def _peer(model: Model, rows: int, dtype: torch.dtype) -> Mapping[str, Peer]:
    """The kernels of the operator's parts, where it is one launch."""
    if _call(model, rows, dtype, plan)[0].launches > 1:
        return {}
    return {PEER: Peer(partial(_prepared, model, rows, dtype, _plan_of_parts), TOLERANCE)}


def _plan_of_parts(call: OpCall, device: DeviceTraits) -> CallPlan:
    return plan(replace(call, variant=PARTS), device)


def _call(
    model: Model, rows: int, dtype: torch.dtype, planner: Planner
) -> tuple[TensorCall, list[torch.Tensor], list[torch.Tensor]]:
    """A call on new tensors, its inputs and its outputs."""
    inputs, y = _inputs(model, rows, dtype), poisoned(rows, model.inner)
    outputs = [y, inputs[8], inputs[9]]
    return operator_call(spec_of("mamba2_conv_scan"), inputs, outputs, planner=planner), inputs, outputs


def _expected(model: Model, inputs: list[torch.Tensor], rounded: bool) -> tuple[torch.Tensor, ...]:
    """y and both states in float64. rounded: x, B and C are bfloat16, as several launches hand them on.

    With one group all of y has the same C @ B as a factor. Where its terms cancel, their rounding is large beside it.
    """
    conv_input, gate, dt, weight, bias, A, D, dt_bias, conv_state, state = (tensor.double() for tensor in inputs[:10])
    mixed, conv_after = causal_conv1d(conv_input, weight, bias, conv_state, inputs[10], "silu")
    if rounded:
        mixed = mixed.to(torch.bfloat16).double()
    x, B, C = model.parts(mixed)
    y, after = update_ssm_state(x, A, B, C, D, dt, dt_bias, state, inputs[10], 1, 0.0, math.inf, 1)
    return y.flatten(-2) * torch.nn.functional.silu(gate), conv_after, after


def _inputs(model: Model, rows: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """In the operator's order; gate, conv_input and dt are slices of one tensor, as of a projection."""
    bf16, channels, heads = torch.bfloat16, model.channels, model.heads
    projected = normal(rows, model.inner + channels + heads, dtype=bf16)
    gate, conv_input, dt = projected.split([model.inner, channels, heads], -1)
    weight, bias = (normal(channels, 1, KERNEL) / 2).to(bf16), normal(channels, dtype=bf16)
    A, D, dt_bias = -8 * torch.rand(heads, device="cuda"), normal(heads), normal(heads)
    conv_state, state = (
        normal(rows, channels, KERNEL, dtype=bf16),
        normal(rows, heads, HEAD_DIM, STATE_SIZE, dtype=dtype),
    )
    return [conv_input, gate, dt, weight, bias, A, D, dt_bias, conv_state, state, int32(rows, 1)]
