"""Cases of ``gated_delta_rule`` at the shape of Qwen3-Next: bfloat16 data, with a state updated in place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.case import KernelCase, Prepared, peer_times
from benchmarks.kernels.tensor_call import error_of_parts, normal, operator_call, poisoned, worst_error
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.ops.gated_delta_rule import LONGEST_WALK
from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule

KEY_HEADS, VALUE_HEADS, SIZE = 16, 32, 128
TOLERANCE = 3e-3  # o is bfloat16
AT_LEAST = {1: 1.2, 8: 1.2}
# Minimum speed relative to the best peer; flashinfer's time excludes the norms of q and k, ours includes them.
PREFILL_AT_LEAST = 1 / 1.2
BANDWIDTH_SINCE, BANDWIDTH_SHARE = 256, 0.92
STATES = {"f32": torch.float32, "bf16": torch.bfloat16}
_CHECKED_TOKENS = 4096  # of the first row at a time, to limit the memory of the float64 reference


def decode_cases() -> Iterator[KernelCase]:
    """One token in 1 to 256 rows, with float32 and bfloat16 states."""
    for rows in (1, 8, 64, 256):
        for name, dtype in STATES.items():
            case = f"b{rows} {name} state"
            share = BANDWIDTH_SHARE if rows >= BANDWIDTH_SINCE else None
            yield _case("gated_delta_rule_decode", case, [1] * rows, dtype, AT_LEAST.get(rows, 1.0), share)


def prefill_cases() -> Iterator[KernelCase]:
    """One row of 1,024 to 16,384 tokens, eight rows of 1,024; rows of 0 to 1,024; rows of 0 to 8, which are walked."""
    for rows, time in ((1, 1024), (1, 4096), (1, 16384), (8, 1024)):
        case = f"b{rows} L{time}"
        yield _case("gated_delta_rule_prefill", case, [time] * rows, torch.float32, PREFILL_AT_LEAST)
    for rows, time, name in ((8, 1024, "f32"), (64, LONGEST_WALK, "f32"), (64, LONGEST_WALK, "bf16")):
        lengths = [time * row // (rows - 1) for row in range(rows)]
        yield _case("gated_delta_rule_prefill", f"b{rows} L0-{time} {name} state", lengths, STATES[name])


def _case(
    group: str,
    case: str,
    lengths: list[int],
    state: torch.dtype,
    at_least: float | None = None,
    share: float | None = None,
) -> KernelCase:
    """q, k, v and o in bfloat16, g in float32 and beta in bfloat16; states of rows with tokens, both ways."""
    tokens = sum(lengths) * (2 * SIZE * (2 * KEY_HEADS + 2 * VALUE_HEADS) + 6 * VALUE_HEADS)
    states = 2 * sum(length > 0 for length in lengths) * VALUE_HEADS * SIZE * SIZE * state.itemsize
    prepare = partial(_prepared, lengths, state)
    return KernelCase(case, tokens + states, TOLERANCE, prepare, peer_times(group, case), at_least, share)


def token_inputs(*lead: int) -> list[torch.Tensor]:
    """q, k, v, g and beta with these first axes; q, k and v are slices of one convolution's output."""
    keys, values = KEY_HEADS * SIZE, VALUE_HEADS * SIZE
    q, k, v = normal(*lead, 2 * keys + values, dtype=torch.bfloat16).split([keys, keys, values], -1)
    g = -torch.nn.functional.softplus(normal(*lead, VALUE_HEADS, 1) - 2.0)
    beta = torch.sigmoid(normal(*lead, VALUE_HEADS)).to(torch.bfloat16)
    return [*(tensor.unflatten(-1, (-1, SIZE)) for tensor in (q, k, v)), g, beta]


def _prepared(row_lengths: list[int], state_type: torch.dtype) -> Prepared:
    """The form without a token axis for one token."""
    rows, time = len(row_lengths), max(row_lengths)
    inputs = token_inputs(rows, time) if time > 1 else token_inputs(rows)
    state, o = normal(rows, VALUE_HEADS, SIZE, SIZE, dtype=state_type), poisoned(*inputs[2].shape)
    lengths = torch.tensor(row_lengths, dtype=torch.int32, device="cuda")
    run = operator_call(spec_of("gated_delta_rule"), [*inputs, state, lengths], [o, state])
    # All rows, or only the first where all are equally long.
    checked = 1 if time > 1 and min(row_lengths) == time else rows

    def error() -> float:
        carried, parts = state[:checked].double(), []
        run()
        for begin in range(0, time, _CHECKED_TOKENS):
            part = (slice(checked), slice(begin, begin + _CHECKED_TOKENS)) if time > 1 else (slice(checked),)
            here = (lengths[:checked] - begin).clamp(0, _CHECKED_TOKENS)
            arguments: list[Any] = [*(each[part].double() for each in inputs), carried, here, "head", 1, 0.0, 64]
            expected, carried = gated_delta_rule(*arguments)
            # The values of o after the end of a row are unspecified.
            ended = torch.arange(expected.shape[1], device="cuda") >= here[:, None] if time > 1 else here == 0
            parts.append([each.masked_fill(ended[..., None, None], 0.0) for each in (o[part], expected)])
        return max(error_of_parts(parts), worst_error([state[:checked]], [carried]))

    return Prepared(run, error)
