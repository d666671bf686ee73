"""Cases of ``causal_conv1d``: 10,240 channels in bfloat16, with a state updated in place.

Width 4 has a bias and SiLU, as in Mamba2; widths 3 and 7 have neither, as in gated short convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.packages import causal_conv1d as package
from benchmarks.kernels.packages import fla
from benchmarks.kernels.peers import Peer, package_peers
from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.tensor_call import int32, normal, operator_call, worst_error
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.reference.causal_conv1d import causal_conv1d

CHANNELS, WIDTH, SHORT_WIDTHS = 10240, 4, (3, 7)
BANDWIDTH_SHARE = 0.9
TOLERANCE = 3e-3
_ITEM = 2  # bytes of a bfloat16
# From x, weight, bias and the state: what enqueues a call and returns y and the state after it, or its last columns.
Call = Callable[..., Callable[[], Sequence[torch.Tensor]]]


def cases() -> Iterator[KernelCase]:
    """Updates of 1 to 256 rows, prefills of one row."""
    updates = [(f"update b{rows}", (rows, CHANNELS), 1.5 if rows >= 64 else 1.0) for rows in (1, 8, 64, 256)]
    prefills = [(f"prefill L{time}", (1, time, CHANNELS), 1.0) for time in (1024, 4096, 16384)]
    for name, shape, at_least in (*updates, *prefills):
        prepare, peers = partial(_prepared, shape, WIDTH), partial(_peers, shape)
        yield KernelCase(name, _bytes(shape, WIDTH), TOLERANCE, prepare, at_least, peers=peers)
    for width in SHORT_WIDTHS:
        for name, shape in ((f"update b{rows}", (rows, CHANNELS)) for rows in (1, 8, 64, 256)):
            share = BANDWIDTH_SHARE if shape[0] >= 64 else None
            prepare = partial(_prepared, shape, width)
            yield KernelCase(f"{name}, width {width}", _bytes(shape, width), TOLERANCE, prepare, bandwidth_share=share)
        shape = (1, 4096, CHANNELS)
        yield KernelCase(
            f"prefill L4096, width {width}", _bytes(shape, width), TOLERANCE, partial(_prepared, shape, width)
        )


def _bytes(shape: tuple[int, ...], width: int) -> int:
    rows, tokens = shape[0], shape[0] if len(shape) == 2 else shape[0] * shape[1]
    weights = CHANNELS * (width + (width == WIDTH)) * _ITEM
    return 2 * _ITEM * CHANNELS * (tokens + rows * width) + weights


def _peers(shape: tuple[int, ...]) -> Mapping[str, Peer]:
    one_token = len(shape) == 2
    calls: dict[str, Call] = {
        fla.DISTRIBUTION: fla.convolution_step if one_token else fla.convolution_prompt,
        package.DISTRIBUTION: package.step if one_token else package.prompt,
    }
    found: dict[str, Peer] = {}
    for distribution, call in calls.items():
        found |= package_peers(distribution, {"": partial(_prepared, shape, WIDTH, call)})
    return found


def _prepared(shape: tuple[int, ...], width: int, call: Call | None = None) -> Prepared:
    """call: a peer's, None for ours."""
    bf16, silu = torch.bfloat16, width == WIDTH
    x, state = normal(*shape, dtype=bf16), normal(shape[0], CHANNELS, width, dtype=bf16)
    weight, bias = normal(CHANNELS, 1, width, dtype=bf16), normal(CHANNELS, dtype=bf16) if silu else None
    lengths = int32(shape[0], shape[1] if len(shape) == 3 else 1)
    activation = "silu" if silu else "none"
    spec = spec_of("causal_conv1d")
    if call:
        run = call(x, weight, bias, state)
    else:
        y = torch.full_like(x, float("nan"))
        run = operator_call(spec, [x, weight, bias, state, lengths], [y, state], {"activation": activation})

    def error() -> float:
        given = (None if tensor is None else tensor.double() for tensor in (x, weight, bias, state))
        arguments: list[Any] = [*given, lengths, activation]
        y, last = run()
        expected_y, expected_state = causal_conv1d(*arguments)
        same = torch.equal(last.double(), expected_state[..., -last.shape[-1] :])
        return worst_error([y], [expected_y]) if same else float("inf")

    return Prepared(run, error)
