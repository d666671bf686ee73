"""Cases of ``causal_conv1d``: 10,240 channels, width 4, bias and SiLU in bfloat16, with a state updated in place."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.kernels.case import KernelCase, Prepared
from benchmarks.kernels.peers import peer_times
from benchmarks.kernels.tensor_call import TensorCall, layout_of
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.call import OpCall
from hybridge.trt_plugins.kernels.catalog import plan
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.reference.causal_conv1d import causal_conv1d

GROUP = "causal_conv1d"
CHANNELS, WIDTH = 10240, 4
TOLERANCE = 3e-3
_ITEM = 2  # bytes of a bfloat16


def cases() -> Iterator[KernelCase]:
    """Updates of 1 to 256 rows, prefills of one row."""
    for rows in (1, 8, 64, 256):
        yield _case(f"update b{rows}", (rows, CHANNELS), at_least=1.5 if rows >= 64 else 1.0)
    for time in (1024, 4096, 16384):
        yield _case(f"prefill L{time}", (1, time, CHANNELS), at_least=1.0)


def _case(name: str, x_shape: tuple[int, ...], at_least: float) -> KernelCase:
    tokens = x_shape[0] if len(x_shape) == 2 else x_shape[0] * x_shape[1]
    filter_bytes = CHANNELS * (WIDTH + 1) * _ITEM
    size = 2 * _ITEM * CHANNELS * (tokens + x_shape[0] * WIDTH) + filter_bytes
    return KernelCase(name, size, TOLERANCE, lambda: _prepared(x_shape), peer_times(GROUP, name), at_least)


def _prepared(x_shape: tuple[int, ...]) -> Prepared:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").to(torch.bfloat16)

    x, state = normal(*x_shape), normal(x_shape[0], CHANNELS, WIDTH)
    weight, bias = normal(CHANNELS, 1, WIDTH), normal(CHANNELS)
    lengths = torch.full((x_shape[0],), x_shape[1] if len(x_shape) == 3 else 1, dtype=torch.int32, device="cuda")
    y = torch.full_like(x, float("nan"))
    inputs, outputs = [x, weight, bias, state, lengths], [y, state]
    spec = spec_of("causal_conv1d")
    call = OpCall(
        spec,
        tuple(layout_of(tensor) for tensor in inputs),
        tuple(layout_of(tensor) for tensor in outputs),
        spec.complete_attributes({"activation": "silu"}),
    )
    device = KernelDevice.current()
    run = TensorCall(device, plan(call, device.traits), inputs, outputs)

    def error() -> float:
        before = state.clone()
        run()
        expected_y, expected_state = causal_conv1d(
            x.double(), weight.double(), bias.double(), before.double(), lengths, "silu"
        )
        worst = (y.double() - expected_y).norm() / expected_y.norm()
        return float(worst) if torch.equal(state.double(), expected_state) else float("inf")

    return Prepared(run, error)
