"""Cases of ``gated_delta_rule`` with many tokens a row: bfloat16 data, a state updated in place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.gated_delta_rule_inputs import (
    KEY_HEADS,
    SIZE,
    STATES,
    VALUE_HEADS,
    prepared,
    ragged_lengths,
)
from benchmarks.kernels.peers import peer_times
from hybridge.trt_plugins.kernels.ops.gated_delta_rule import LONGEST_WALK

GROUP = "gated_delta_rule_prefill"
TOLERANCE = 3e-3
# Of the best peer's time; that of flashinfer is without the norms of q and k, which are part of ours.
AT_LEAST = 1 / 1.2
# q, k, v, o in bfloat16, g in float32 and beta in bfloat16.
_TOKEN_BYTES = 2 * SIZE * (2 * KEY_HEADS + 2 * VALUE_HEADS) + 6 * VALUE_HEADS


def cases() -> Iterator[KernelCase]:
    """One row of 1,024 to 16,384 tokens, eight rows of 1,024; rows of 0 to 1,024; rows of 0 to 8, which are walked."""
    for rows, time in ((1, 1024), (1, 4096), (1, 16384), (8, 1024)):
        case = f"b{rows} L{time}"
        size = rows * time * _TOKEN_BYTES + rows * _state_bytes(torch.float32)
        run = partial(prepared, rows, time, torch.float32)
        yield KernelCase(case, size, TOLERANCE, run, peer_times(GROUP, case), AT_LEAST)
    for rows, time, name in ((8, 1024, "f32"), (64, LONGEST_WALK, "f32"), (64, LONGEST_WALK, "bf16")):
        lengths = ragged_lengths(rows, time)
        dtype = STATES[name]
        size = sum(lengths) * _TOKEN_BYTES + sum(length > 0 for length in lengths) * _state_bytes(dtype)
        run = partial(prepared, rows, time, dtype, ragged=True)
        yield KernelCase(f"b{rows} L0-{time} {name} state", size, TOLERANCE, run)


def _state_bytes(dtype: torch.dtype) -> int:
    return 2 * dtype.itemsize * VALUE_HEADS * SIZE * SIZE
