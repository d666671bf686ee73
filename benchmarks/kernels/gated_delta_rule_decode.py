"""Cases of one-token ``gated_delta_rule``: the shape of Qwen3-Next, with a state updated in place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.gated_delta_rule_inputs import KEY_HEADS, SIZE, STATES, VALUE_HEADS, prepared
from benchmarks.kernels.peers import peer_times

GROUP = "gated_delta_rule_decode"
TOLERANCE = 3e-3  # o is bfloat16
AT_LEAST = {1: 1.2, 8: 1.2}
BANDWIDTH_SINCE, BANDWIDTH_SHARE = 256, 0.92


def cases() -> Iterator[KernelCase]:
    """1 to 256 rows with float32 and bfloat16 states."""
    for rows in (1, 8, 64, 256):
        for name, dtype in STATES.items():
            case = f"b{rows} {name} state"
            yield KernelCase(
                case,
                _bytes(rows, dtype.itemsize),
                TOLERANCE,
                partial(prepared, rows, 1, dtype),
                peer_times(GROUP, case),
                AT_LEAST.get(rows, 1.0),
                BANDWIDTH_SHARE if rows >= BANDWIDTH_SINCE else None,
            )


def _bytes(rows: int, item: int) -> int:
    tokens = 2 * SIZE * (2 * KEY_HEADS + 2 * VALUE_HEADS) + 6 * VALUE_HEADS
    return rows * (2 * VALUE_HEADS * SIZE * SIZE * item + tokens)
