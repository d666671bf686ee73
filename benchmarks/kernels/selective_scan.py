"""Cases of ``selective_scan`` at the sizes of Mamba1 models: bfloat16 data, 16 numbers a channel, updated in place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.packages import mamba_ssm
from benchmarks.kernels.peers import Peer, package_peers
from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.tensor_call import error_of_parts, int32, normal, operator_call, worst_error
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.reference.selective_scan import selective_scan

STATE_SIZE = 16
CHANNELS = {"Jamba": 8192, "130M": 1536}
TOLERANCE = 3e-3  # y is bfloat16
STATES = {"f32": torch.float32, "bf16": torch.bfloat16}
BANDWIDTH_SINCE, BANDWIDTH_SHARE = 64, 0.9
_CHECKED_TOKENS = 4096  # at once, to limit the memory of the float64 reference


def decode_cases() -> Iterator[KernelCase]:
    """One token in 1 to 256 rows, with float32 and bfloat16 states."""
    for model, channels in CHANNELS.items():
        for rows in (1, 8, 64, 256):
            for name, dtype in STATES.items():
                tokens = 2 * rows * (3 * channels + 2 * STATE_SIZE) + 4 * channels * (STATE_SIZE + 2)
                size = tokens + 2 * rows * channels * STATE_SIZE * dtype.itemsize
                yield KernelCase(
                    f"{model} b{rows} {name} state",
                    size,
                    TOLERANCE,
                    partial(_prepared, channels, rows, 0, dtype),
                    bandwidth_share=BANDWIDTH_SHARE if rows >= BANDWIDTH_SINCE else None,
                )


def prefill_cases() -> Iterator[KernelCase]:
    """One row of 1,024 and 4,096 tokens, and eight of 1,024."""
    for model, channels in CHANNELS.items():
        for rows, time in ((1, 1024), (1, 4096), (8, 1024)):
            size = 2 * rows * time * (3 * channels + 2 * STATE_SIZE) + 8 * rows * channels * STATE_SIZE
            yield KernelCase(
                f"{model} b{rows} L{time}",
                size,
                TOLERANCE,
                partial(_prepared, channels, rows, time, torch.float32),
                at_least=1.0,
                peers=partial(_peers, channels, rows, time),
            )


def _inputs(channels: int, lead: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """In the operator's order, up to the state."""
    bf16, group = torch.bfloat16, (1, STATE_SIZE)
    x, dt = normal(*lead, channels, dtype=bf16), normal(*lead, channels, dtype=bf16)
    B, C = normal(*lead, *group, dtype=bf16), normal(*lead, *group, dtype=bf16)
    A = -torch.arange(1.0, STATE_SIZE + 1, device="cuda").repeat(channels, 1)
    return [x, A, B, C, normal(channels), dt, normal(channels) - 4, normal(lead[0], 1, channels, STATE_SIZE).to(dtype)]


def _prepared(channels: int, rows: int, time: int, dtype: torch.dtype) -> Prepared:
    """time 0: the form without a token axis, for one token."""
    inputs = _inputs(channels, (rows, time) if time else (rows,), dtype)
    state, y = inputs[-1], torch.full_like(inputs[0], float("nan"))
    run = operator_call(spec_of("selective_scan"), [*inputs, int32(rows, time or 1)], [y, state])

    def error() -> float:
        """Over all rows of one token, or a prompt's first row."""
        before = state[: 1 if time else rows].double()
        run()
        return _error(inputs, before, y, state)

    return Prepared(run, error)


def _error(inputs: list[torch.Tensor], before: torch.Tensor, y: torch.Tensor, state: torch.Tensor) -> float:
    """Of y and the state after it, over as many rows as the state ``before``."""
    checked, time = len(before), inputs[0].shape[1] if inputs[0].ndim == 3 else 0
    carried, parts = before, []
    for begin in range(0, time or 1, _CHECKED_TOKENS):
        part = slice(begin, begin + _CHECKED_TOKENS)
        own = [each[:checked, part] if time and i in (0, 2, 3, 5) else each for i, each in enumerate(inputs[:7])]
        count = own[0].shape[1] if time else 1
        arguments: list[Any] = [*(each.double() for each in own), carried, int32(checked, count), 1, 0.0, math.inf]
        expected, carried = selective_scan(*arguments)
        parts.append((y[:checked, part] if time else y, expected))
    return max(error_of_parts(parts), worst_error([state[:checked]], [carried]))


def _peers(channels: int, rows: int, time: int) -> Mapping[str, Peer]:
    """mamba_ssm's scan, which starts from zeros."""

    def prepare() -> Prepared:
        inputs = _inputs(channels, (rows, time), torch.float32)
        run = mamba_ssm.selective_scan(*inputs[:7])

        def error() -> float:
            y, last = run()
            return _error(inputs, torch.zeros_like(last[:1], dtype=torch.float64).unsqueeze(1), y, last.unsqueeze(1))

        return Prepared(run, error)

    return package_peers(mamba_ssm.DISTRIBUTION, {"": prepare})
