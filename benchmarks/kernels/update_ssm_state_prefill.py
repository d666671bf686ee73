"""Cases of ``update_ssm_state`` with many tokens a row: bfloat16 data, a float32 state updated in place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.kernels.case import KernelCase, Prepared
from benchmarks.kernels.peers import peer_times
from benchmarks.kernels.tensor_call import TensorCall, layout_of
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.call import OpCall
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.ops.update_ssm_state_prefill import plan_prefill
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state

GROUP = "update_ssm_state_prefill"
TOLERANCE = 3e-3
# heads, head_dim, state_size, groups
SHAPES = {"Nemotron": (128, 64, 128, 8), "Granite": (48, 64, 128, 1)}
_CHECKED_TOKENS = 4096  # of the first row: what the float64 reference holds in memory at once
_PEER_ROWS = ((1, 128), (1, 1024), (1, 4096), (1, 16384), (8, 1024))


def cases() -> Iterator[KernelCase]:
    """One row of 128 to 16,384 tokens, and eight rows of 1,024."""
    for shape, (heads, head_dim, state_size, groups) in SHAPES.items():
        for rows, time in _PEER_ROWS:
            name = f"{shape} b{rows} L{time}"
            tokens = rows * time * (4 * heads * head_dim + 4 * groups * state_size + 2 * heads)
            size = tokens + 8 * rows * heads * head_dim * state_size
            yield KernelCase(name, size, TOLERANCE, partial(_prepared, shape, rows, time), peer_times(GROUP, name), 1.0)


def _prepared(shape: str, rows: int, time: int) -> Prepared:
    heads, head_dim, state_size, groups = SHAPES[shape]

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device="cuda")

    def data(*sizes: int) -> torch.Tensor:
        return normal(rows, time, *sizes).to(torch.bfloat16)

    x, B, C, dt = data(heads, head_dim), data(groups, state_size), data(groups, state_size), data(heads)
    A, D, bias = -1 - 15 * torch.rand(heads, device="cuda"), normal(heads), normal(heads) - 4
    state = normal(rows, heads, head_dim, state_size)
    lengths = torch.full((rows,), time, dtype=torch.int32, device="cuda")
    inputs = [x, A, B, C, D, dt, bias, state, lengths]
    outputs = [torch.full_like(x, float("nan")), state]
    spec = spec_of("update_ssm_state")
    layouts = [tuple(layout_of(tensor) for tensor in tensors) for tensors in (inputs, outputs)]
    device = KernelDevice.current()
    plan = plan_prefill(OpCall(spec, layouts[0], layouts[1], spec.complete_attributes({})), device.traits)
    run = TensorCall(device, plan, inputs, outputs)

    def error() -> float:
        first = [tensor[:1] if index in (0, 2, 3, 5, 7, 8) else tensor for index, tensor in enumerate(inputs)]
        before = state.clone()
        first[7] = before[:1]
        run()
        return _error(first, outputs[0][:1], state[:1])

    return Prepared(run, error)


def _error(inputs: list[torch.Tensor], y: torch.Tensor, state: torch.Tensor) -> float:
    """Relative norm of the error of y and of the state against float64, whichever is larger."""
    parts, time = [], y.shape[1]
    carried = inputs[7].double()
    for begin in range(0, time, _CHECKED_TOKENS):
        part = [
            tensor[:, begin : begin + _CHECKED_TOKENS] if index in (0, 2, 3, 5) else tensor
            for index, tensor in enumerate(inputs)
        ]
        x, A, B, C, D, dt, bias = (tensor.double() for tensor in part[:7])
        lengths = torch.full_like(inputs[8], x.shape[1])
        expected, carried = update_ssm_state(x, A, B, C, D, dt, bias, carried, lengths, 1, 0.0, math.inf, 64)
        piece = y[:, begin : begin + _CHECKED_TOKENS].double() - expected
        parts.append((piece.norm() ** 2, expected.norm() ** 2))
    wrong, whole = (torch.stack(norms).sum() for norms in zip(*parts, strict=True))
    return max(float((wrong / whole).sqrt()), float((state.double() - carried).norm() / carried.norm()))
