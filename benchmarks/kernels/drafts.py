"""Cases of rows with draft tokens: 5 tokens against 1, at the shapes of Nemotron-H and Qwen3-Next.

Plain names: the state after every token goes to a slot of its own. "held": a check that writes no state. "advance": of
5 deferred tokens 3 were accepted, by which the state is advanced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.gated_delta_rule import KEY_HEADS, SIZE, VALUE_HEADS, token_inputs
from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.tensor_call import normal, operator_call, worst_error
from benchmarks.kernels.update_ssm_state import HEAD_DIM, MODELS, STATE_SIZE
from hybridge.trt_plugins.catalog import SPECULATIVE_OPS, spec_of
from hybridge.trt_plugins.kernels.call import PackedRows
from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule
from hybridge.trt_plugins.reference.speculative import speculative_reference
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state

COLUMNS, ACCEPTED = 5, 3
STORED, HELD, ADVANCE = "", " held", " advance"
STATES = {"f32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {torch.float32: 3e-3, torch.bfloat16: 1e-2}  # a 16-bit state is rounded after every token
NEMOTRON = MODELS["Nemotron"]


@dataclass(frozen=True)
class Operator:
    """reference: the dense form. inputs: of so many tokens, without the pool, which is input ``pool``.

    y: the input whose shape y has. state: sizes of one state. token: numbers that one token reads and writes.
    """

    reference: Callable[..., tuple[torch.Tensor, ...]]
    inputs: Callable[[int], list[torch.Tensor]]
    pool: int
    y: int
    state: tuple[int, ...]
    token: int


def _ssm_inputs(tokens: int) -> list[torch.Tensor]:
    heads = NEMOTRON.heads
    mixed, dt = normal(tokens, NEMOTRON.channels + heads, dtype=torch.bfloat16).split([NEMOTRON.channels, heads], -1)
    x, B, C = NEMOTRON.parts(mixed)
    return [x, -8 * torch.rand(heads, device="cuda"), B, C, normal(heads), dt, normal(heads)]


OPERATORS = {
    "update_ssm_state": Operator(
        update_ssm_state, _ssm_inputs, 7, 0, (NEMOTRON.heads, HEAD_DIM, STATE_SIZE), NEMOTRON.inner + NEMOTRON.channels
    ),
    "gated_delta_rule": Operator(
        gated_delta_rule, token_inputs, 5, 2, (VALUE_HEADS, SIZE, SIZE), 2 * (KEY_HEADS + VALUE_HEADS) * SIZE
    ),
}


def cases() -> Iterator[KernelCase]:
    """1 and 8 rows of 1 and 5 tokens."""
    for op, operator in OPERATORS.items():
        for rows in (1, 8):
            for name, state in STATES.items():
                for tokens, way in ((1, STORED), (COLUMNS, STORED), (COLUMNS, HELD), (COLUMNS, ADVANCE)):
                    case = f"{op} b{rows} {name} state {tokens} token{'s' if tokens > 1 else ''}{way}"
                    written, read = {STORED: (tokens, tokens), HELD: (0, tokens), ADVANCE: (1, ACCEPTED)}[way]
                    state_bytes = (1 + written) * math.prod(operator.state) * state.itemsize
                    size = rows * (state_bytes + 2 * read * operator.token)
                    yield KernelCase(case, size, TOLERANCE[state], partial(_prepared, op, rows, tokens, state, way))


def _prepared(op: str, rows: int, tokens: int, state: torch.dtype, way: str) -> Prepared:
    operator, spec = OPERATORS[op], spec_of(op)
    tensors = operator.inputs(rows * tokens)
    pool = normal(rows * COLUMNS, *operator.state, dtype=state)
    tensors.insert(operator.pool, pool)
    # Rejected tokens have no output, where the reference has zeros.
    y = torch.full_like(tensors[operator.y], 0.0 if way == ADVANCE else float("nan"))
    packed = _packed(rows, tokens, way)
    count, columns = packed[1].shape
    shape = PackedRows(count, tokens, draft_slots=columns)
    run = operator_call(spec, [*tensors, None], [y, pool], rows=shape, packed=packed)

    def error() -> float:
        wide = [tensor.double() for tensor in tensors]
        attributes = spec.complete_attributes({}).values()
        expected = speculative_reference(SPECULATIVE_OPS[op], operator.reference)(*wide, *packed, *attributes)
        run()
        return worst_error((y, pool), expected)

    return Prepared(run, error)


def _packed(rows: int, tokens: int, way: str) -> list[torch.Tensor]:
    """query_start_loc, state_indices and num_accepted_tokens, int32 on the GPU."""
    slots = torch.randperm(rows * COLUMNS).view(rows, COLUMNS)
    starts, accepted = torch.arange(0, rows * tokens + 1, tokens), torch.full((rows,), 2)
    if way == HELD:
        # The slot is in a column that no token writes.
        slots = torch.cat([torch.full_like(slots, -1), slots[:, :1]], 1)
        accepted = torch.full((rows,), COLUMNS + 1)
    elif way == ADVANCE:
        # A row of the accepted tokens, which stores its last state only, and a padding row of the others.
        table = torch.full((rows, 2, COLUMNS), -1)
        table[:, 0, ACCEPTED - 1] = slots[:, 0]
        begins = torch.stack([starts[:-1], starts[:-1] + ACCEPTED], 1).flatten()
        starts, slots = torch.cat([begins, starts[-1:]]), table.flatten(0, 1)
        accepted = torch.full((2 * rows,), ACCEPTED)
    return [tensor.to("cuda", torch.int32) for tensor in (starts, slots, accepted)]
