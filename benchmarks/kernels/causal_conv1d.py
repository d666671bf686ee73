"""Cases of ``causal_conv1d``: 10,240 channels, width 4, bias and SiLU in bfloat16, with a state updated in place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.case import KernelCase, Prepared, peer_times
from benchmarks.kernels.tensor_call import int32, normal, operator_call, worst_error
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.reference.causal_conv1d import causal_conv1d

CHANNELS, WIDTH = 10240, 4
TOLERANCE = 3e-3
_ITEM = 2  # bytes of a bfloat16


def cases() -> Iterator[KernelCase]:
    """Updates of 1 to 256 rows, prefills of one row."""
    updates = [(f"update b{rows}", (rows, CHANNELS), 1.5 if rows >= 64 else 1.0) for rows in (1, 8, 64, 256)]
    prefills = [(f"prefill L{time}", (1, time, CHANNELS), 1.0) for time in (1024, 4096, 16384)]
    for name, shape, at_least in (*updates, *prefills):
        rows, tokens = shape[0], shape[0] if len(shape) == 2 else shape[0] * shape[1]
        size = 2 * _ITEM * CHANNELS * (tokens + rows * WIDTH) + CHANNELS * (WIDTH + 1) * _ITEM
        peers = peer_times("causal_conv1d", name)
        yield KernelCase(name, size, TOLERANCE, partial(_prepared, shape), peers, at_least)


def _prepared(shape: tuple[int, ...]) -> Prepared:
    bf16 = torch.bfloat16
    x, state = normal(*shape, dtype=bf16), normal(shape[0], CHANNELS, WIDTH, dtype=bf16)
    weight, bias = normal(CHANNELS, 1, WIDTH, dtype=bf16), normal(CHANNELS, dtype=bf16)
    lengths, y = int32(shape[0], shape[1] if len(shape) == 3 else 1), torch.full_like(x, float("nan"))
    spec = spec_of("causal_conv1d")
    run = operator_call(spec, [x, weight, bias, state, lengths], [y, state], {"activation": "silu"})

    def error() -> float:
        arguments: list[Any] = [*(tensor.double() for tensor in (x, weight, bias, state)), lengths, "silu"]
        run()
        expected_y, expected_state = causal_conv1d(*arguments)
        return worst_error([y], [expected_y]) if torch.equal(state.double(), expected_state) else float("inf")

    return Prepared(run, error)
