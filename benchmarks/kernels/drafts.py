"""Cases of rows with draft tokens: 5 tokens against 1, at the shapes of Nemotron-H and Qwen3-Next.

Kept: after every token the state goes to a slot of its own, so 5 tokens write five times what 1 token writes. Held: the
state is read and not written. Advance: of 5 deferred tokens 3 are accepted, and the state is advanced by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.kernels.case import KernelCase, Prepared
from benchmarks.kernels.gated_delta_rule import KEY_HEADS, SIZE, VALUE_HEADS, token_inputs
from benchmarks.kernels.tensor_call import normal, operator_call, worst_error
from benchmarks.kernels.update_ssm_state import HEAD_DIM, MODELS, STATE_SIZE
from hybridge.trt_plugins.catalog import SPECULATIVE_OPS, spec_of
from hybridge.trt_plugins.kernels.call import PackedRows
from hybridge.trt_plugins.reference.causal_conv1d import causal_conv1d
from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule
from hybridge.trt_plugins.reference.speculative import speculative_reference
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state

COLUMNS, ACCEPTED = 5, 3
KEPT, HELD, ADVANCE = "kept", "held", "advance"
TOLERANCE = {torch.float32: 3e-3, torch.bfloat16: 1e-2}  # a 16-bit state is rounded after every token
STATES = {"f32": torch.float32, "bf16": torch.bfloat16}
NEMOTRON = MODELS["Nemotron"]
KERNEL = 4


@dataclass(frozen=True)
class Operator:
    """inputs: those of so many tokens, but for the pool, which is input ``pool``. y: the input that y is shaped like.

    state: sizes of one state. token: numbers that one token reads and writes.
    """

    reference: Callable[..., tuple[torch.Tensor, ...]]
    inputs: Callable[[int], list[torch.Tensor]]
    pool: int
    y: int
    state: tuple[int, ...]
    token: int


def _ssm(tokens: int) -> list[torch.Tensor]:
    heads = NEMOTRON.heads
    mixed, dt = normal(tokens, NEMOTRON.channels + heads, dtype=torch.bfloat16).split([NEMOTRON.channels, heads], -1)
    x, B, C = NEMOTRON.parts(mixed)
    return [x, -8 * torch.rand(heads, device="cuda"), B, C, normal(heads), dt, normal(heads)]


def _conv(tokens: int) -> list[torch.Tensor]:
    channels, bf16 = NEMOTRON.channels, torch.bfloat16
    weight = normal(channels, 1, KERNEL) / math.sqrt(KERNEL)
    return [normal(tokens, channels, dtype=bf16), weight.to(bf16), normal(channels, dtype=bf16)]


OPERATORS = {
    "update_ssm_state": Operator(
        update_ssm_state,
        _ssm,
        7,
        0,
        (NEMOTRON.heads, HEAD_DIM, STATE_SIZE),
        NEMOTRON.inner + NEMOTRON.channels,
    ),
    "gated_delta_rule": Operator(
        gated_delta_rule, token_inputs, 5, 2, (VALUE_HEADS, SIZE, SIZE), 2 * (KEY_HEADS + VALUE_HEADS) * SIZE
    ),
    "causal_conv1d": Operator(causal_conv1d, _conv, 3, 0, (NEMOTRON.channels, KERNEL), 2 * NEMOTRON.channels),
}


def cases() -> Iterator[KernelCase]:
    """1 and 8 rows of 1 and 5 tokens."""
    for op, operator in OPERATORS.items():
        for rows in (1, 8):
            for name, state in STATES.items():
                if op == "causal_conv1d" and name == "f32":
                    continue
                for tokens, way in ((1, KEPT), (COLUMNS, KEPT), (COLUMNS, HELD), (COLUMNS, ADVANCE)):
                    case = f"{op} b{rows} {name} state {tokens} token{'s' if tokens > 1 else ''}"
                    case += "" if way == KEPT else f" {way}"
                    written, read = {KEPT: (tokens, tokens), HELD: (0, tokens), ADVANCE: (1, ACCEPTED)}[way]
                    state_bytes = (1 + written) * math.prod(operator.state) * state.itemsize
                    size = rows * (state_bytes + 2 * read * operator.token)
                    yield KernelCase(case, size, TOLERANCE[state], partial(_prepared, op, rows, tokens, state, way))


def _about_rows(rows: int, tokens: int, way: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """query_start_loc, state_indices and num_accepted_tokens."""
    slots = torch.randperm(rows * COLUMNS).to(torch.int32).view(rows, COLUMNS)
    starts, accepted = torch.arange(0, rows * tokens + 1, tokens), torch.full((rows,), 2)
    if way == HELD:
        # The slot lies in a column that no token writes.
        slots = torch.cat([torch.full_like(slots, -1), slots[:, :1]], 1)
        accepted = torch.full((rows,), COLUMNS + 1)
    elif way == ADVANCE:
        # A row of the accepted tokens stores its last state only; the other rows are padding.
        table = torch.full((rows, 2, COLUMNS), -1, dtype=torch.int32)
        table[:, 0, ACCEPTED - 1] = slots[:, 0]
        starts = torch.cat([torch.stack([starts[:-1], starts[:-1] + ACCEPTED], 1).flatten(), starts[-1:]])
        slots, accepted = table.flatten(0, 1), torch.full((2 * rows,), ACCEPTED)
    on_gpu = [tensor.to("cuda", torch.int32) for tensor in (starts, slots, accepted)]
    return on_gpu[0], on_gpu[1], on_gpu[2]


def _prepared(op: str, rows: int, tokens: int, state: torch.dtype, way: str) -> Prepared:
    operator = OPERATORS[op]
    inputs: list[torch.Tensor] = operator.inputs(rows * tokens)
    pool = normal(rows * COLUMNS, *operator.state, dtype=state)
    tensors = [*inputs[: operator.pool], pool, *inputs[operator.pool :]]
    # Rejected tokens have no output, where the reference has zeros.
    y = torch.full_like(inputs[operator.y], 0.0 if way == ADVANCE else float("nan"))
    about_rows = _about_rows(rows, tokens, way)
    count, columns = about_rows[1].shape
    spec, packed = spec_of(op), PackedRows(count, tokens, draft_slots=columns)
    run = operator_call(spec, [*tensors, None], [y, pool], rows=packed, packed=about_rows)

    def error() -> float:
        wide = [tensor.double() for tensor in tensors]
        attributes = spec.complete_attributes({}).values()
        expected = speculative_reference(SPECULATIVE_OPS[op], operator.reference)(*wide, *about_rows, *attributes)
        run()
        return worst_error((y, pool), expected)

    return Prepared(run, error)
