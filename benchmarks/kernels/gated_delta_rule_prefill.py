"""Cases of ``gated_delta_rule`` with many tokens a row: bfloat16 data, a float32 state updated in place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.gated_delta_rule_inputs import KEY_HEADS, SIZE, VALUE_HEADS, prepared
from benchmarks.kernels.peers import peer_times

GROUP = "gated_delta_rule_prefill"
TOLERANCE = 3e-3
# Of the best peer's time; that of flashinfer is without the norms of q and k, which are part of ours.
AT_LEAST = 1 / 1.2


def cases() -> Iterator[KernelCase]:
    """One row of 1,024 to 16,384 tokens, and eight rows of 1,024."""
    for rows, time in ((1, 1024), (1, 4096), (1, 16384), (8, 1024)):
        case = f"b{rows} L{time}"
        tokens = rows * time * (2 * SIZE * (2 * KEY_HEADS + 2 * VALUE_HEADS) + 6 * VALUE_HEADS)
        size = tokens + 8 * rows * VALUE_HEADS * SIZE * SIZE
        run = partial(prepared, rows, time, torch.float32)
        yield KernelCase(case, size, TOLERANCE, run, peer_times(GROUP, case), AT_LEAST)
