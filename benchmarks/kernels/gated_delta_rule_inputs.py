"""Calls of ``gated_delta_rule`` at the shape of Qwen3-Next, for the benchmarks."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.kernels.case import Prepared
from benchmarks.kernels.tensor_call import TensorCall, layout_of
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.call import OpCall
from hybridge.trt_plugins.kernels.catalog import plan
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule

KEY_HEADS, VALUE_HEADS, SIZE = 16, 32, 128
STATES = {"f32": torch.float32, "bf16": torch.bfloat16}
_CHECKED_TOKENS = 4096  # of the first row: what the float64 reference holds in memory at once
_TOKENS = range(5)  # the inputs that have a token axis


def ragged_lengths(rows: int, time: int) -> list[int]:
    """0 to ``time`` tokens a row, in equal steps."""
    return [time * row // (rows - 1) for row in range(rows)]


def prepared(rows: int, time: int, state_type: torch.dtype, ragged: bool = False) -> Prepared:
    """bfloat16 q, k and v as slices of one convolution's output; the form without a token axis for one token."""
    inputs = _inputs(rows, time, state_type)
    if ragged:
        inputs[6] = torch.tensor(ragged_lengths(rows, time), dtype=torch.int32, device="cuda")
    outputs = [torch.full(inputs[2].shape, float("nan"), dtype=torch.bfloat16, device="cuda"), inputs[5]]
    spec, device = spec_of("gated_delta_rule"), KernelDevice.current()
    layouts = [tuple(layout_of(tensor) for tensor in tensors) for tensors in (inputs, outputs)]
    chosen = plan(OpCall(spec, layouts[0], layouts[1], spec.complete_attributes({})), device.traits)
    run = TensorCall(device, chosen, inputs, outputs)

    def error() -> float:
        checked = 1 if time > 1 and not ragged else rows
        first = [tensor[:checked].clone() for tensor in inputs]
        run()
        return _error(first, outputs[0][:checked], outputs[1][:checked], time)

    return Prepared(run, error)


def _inputs(rows: int, time: int, state_type: torch.dtype) -> list[torch.Tensor]:
    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(*lead, *sizes, device="cuda")

    lead = (rows, time) if time > 1 else (rows,)
    keys, values = KEY_HEADS * SIZE, VALUE_HEADS * SIZE
    q, k, v = normal(2 * keys + values).to(torch.bfloat16).split([keys, keys, values], -1)
    g = -torch.nn.functional.softplus(normal(VALUE_HEADS, 1) - 2.0)
    beta = torch.sigmoid(normal(VALUE_HEADS)).to(torch.bfloat16)
    state = torch.randn(rows, VALUE_HEADS, SIZE, SIZE, device="cuda").to(state_type)
    lengths = torch.full((rows,), time, dtype=torch.int32, device="cuda")
    heads = [tensor.unflatten(-1, (-1, SIZE)) for tensor in (q, k, v)]
    return [*heads, g, beta, state, lengths]


def _error(inputs: list[torch.Tensor], o: torch.Tensor, state: torch.Tensor, time: int) -> float:
    """Relative norm of the error of o and of the state against float64, whichever is larger."""
    carried, parts = inputs[5].double(), []
    for begin in range(0, time, _CHECKED_TOKENS):
        part = (slice(None), slice(begin, begin + _CHECKED_TOKENS)) if time > 1 else (slice(None),)
        lengths = (inputs[6] - begin).clamp(0, _CHECKED_TOKENS)
        tokens = [inputs[index][part].double() for index in _TOKENS]
        arguments: list[Any] = [*tokens, carried, lengths, "head", 1, 0.0, 64]
        expected, carried = gated_delta_rule(*arguments)
        # What o holds past the end of a row is unspecified.
        ended = torch.arange(expected.shape[1], device=o.device) >= lengths[:, None] if time > 1 else lengths == 0
        wrong = (o[part].double() - expected).masked_fill(ended[..., None, None], 0.0)
        parts.append((wrong.norm() ** 2, expected.masked_fill(ended[..., None, None], 0.0).norm() ** 2))
    wrong, whole = (torch.stack(norms).sum() for norms in zip(*parts, strict=True))
    return max(float((wrong / whole).sqrt()), float((state.double() - carried).norm() / carried.norm()))
