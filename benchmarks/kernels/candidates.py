"""Cases of speculative rows: 5 candidate tokens against 1, at the shapes of Nemotron-H and Qwen3-Next.

Kept: after every token the state goes to a slot of its own, so 5 tokens write five times what 1 token writes. Held: the
state is read and not written. Advance: of 5 tokens that were held 3 are right, and the state takes them up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.kernels.case import KernelCase, Prepared
from benchmarks.kernels.tensor_call import TensorCall, layout_of
from hybridge.trt_plugins.catalog import SPECULATIVE_OPS, spec_of
from hybridge.trt_plugins.kernels.call import OpCall, PackedRows
from hybridge.trt_plugins.kernels.catalog import plan
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.reference.causal_conv1d import causal_conv1d
from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule
from hybridge.trt_plugins.reference.speculative import speculative_reference
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state

COLUMNS, RIGHT = 5, 3
KEPT, HELD, ADVANCE = "kept", "held", "advance"
TOLERANCE = {torch.float32: 3e-3, torch.bfloat16: 1e-2}  # a 16-bit state is rounded after every token
STATES = {"f32": torch.float32, "bf16": torch.bfloat16}
REFERENCES: dict[str, Callable] = {
    "update_ssm_state": update_ssm_state,
    "gated_delta_rule": gated_delta_rule,
    "causal_conv1d": causal_conv1d,
}
POOLS = {"update_ssm_state": 7, "gated_delta_rule": 5, "causal_conv1d": 3}
HEADS, HEAD_DIM, GROUPS, STATE_SIZE = 128, 64, 8, 128
KEY_HEADS, VALUE_HEADS, SIZE = 16, 32, 128
CHANNELS, KERNEL = 10240, 4


def cases() -> Iterator[KernelCase]:
    """1 and 8 rows of 1 and 5 tokens."""
    for op in REFERENCES:
        for rows in (1, 8):
            for name, state in STATES.items():
                if op == "causal_conv1d" and name == "f32":
                    continue
                for tokens, way in ((1, KEPT), (COLUMNS, KEPT), (COLUMNS, HELD), (COLUMNS, ADVANCE)):
                    case = f"{op} b{rows} {name} state {tokens} token{'s' if tokens > 1 else ''}"
                    case += "" if way == KEPT else f" {way}"
                    size = _bytes(op, rows, tokens, state, way)
                    yield KernelCase(case, size, TOLERANCE[state], partial(_prepared, op, rows, tokens, state, way))


def _bytes(op: str, rows: int, tokens: int, state: torch.dtype, way: str) -> int:
    numbers = {
        "update_ssm_state": (HEADS * HEAD_DIM * STATE_SIZE, 2 * HEADS * HEAD_DIM + 2 * GROUPS * STATE_SIZE),
        "gated_delta_rule": (VALUE_HEADS * SIZE * SIZE, 2 * (KEY_HEADS + VALUE_HEADS) * SIZE),
        "causal_conv1d": (CHANNELS * KERNEL, 2 * CHANNELS),
    }
    of_state, of_token = numbers[op]
    written, read = {KEPT: (tokens, tokens), HELD: (0, tokens), ADVANCE: (1, RIGHT)}[way]
    return rows * ((1 + written) * of_state * state.itemsize + 2 * read * of_token)


def _about_rows(rows: int, tokens: int, way: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """query_start_loc, state_indices and num_accepted_tokens."""
    slots = torch.randperm(rows * COLUMNS).to(torch.int32).view(rows, COLUMNS)
    starts, accepted = torch.arange(0, rows * tokens + 1, tokens), torch.full((rows,), 2)
    if way == HELD:
        # The slot lies in a column that no token writes.
        slots = torch.cat([torch.full_like(slots, -1), slots[:, :1]], 1)
        accepted = torch.full((rows,), COLUMNS + 1)
    elif way == ADVANCE:
        # A row of the right tokens keeps its last state alone; the others are those of a padding row.
        table = torch.full((rows, 2, COLUMNS), -1, dtype=torch.int32)
        table[:, 0, RIGHT - 1] = slots[:, 0]
        starts = torch.cat([torch.stack([starts[:-1], starts[:-1] + RIGHT], 1).flatten(), starts[-1:]])
        slots, accepted = table.flatten(0, 1), torch.full((2 * rows,), RIGHT)
    return tuple(tensor.to("cuda", torch.int32) for tensor in (starts, slots, accepted))  # type: ignore[return-value]


def _prepared(op: str, rows: int, tokens: int, state: torch.dtype, way: str) -> Prepared:
    inputs = {"update_ssm_state": _ssm, "gated_delta_rule": _delta, "causal_conv1d": _conv}[op](rows * tokens)
    index = POOLS[op]
    shape = {
        "update_ssm_state": (HEADS, HEAD_DIM, STATE_SIZE),
        "gated_delta_rule": (VALUE_HEADS, SIZE, SIZE),
        "causal_conv1d": (CHANNELS, KERNEL),
    }[op]
    pool = torch.randn(rows * COLUMNS, *shape, device="cuda").to(state)
    tensors: list[torch.Tensor | None] = [*inputs[:index], pool, *inputs[index:], None]
    first = tensors[2 if op == "gated_delta_rule" else 0]
    assert first is not None
    # Tokens that were wrong have no output, where the reference has zeros.
    y = torch.full(first.shape, 0.0 if way == ADVANCE else float("nan"), dtype=torch.bfloat16, device="cuda")
    about_rows = _about_rows(rows, tokens, way)
    count, columns = about_rows[1].shape
    spec, device = spec_of(op), KernelDevice.current()
    layouts = tuple(None if tensor is None else layout_of(tensor) for tensor in tensors)
    call = OpCall(
        spec,
        layouts,
        (layout_of(y), layout_of(pool)),
        spec.complete_attributes({}),
        PackedRows(count, tokens, candidates=columns),
    )
    run = TensorCall(device, plan(call, device.traits), tensors, [y, pool], about_rows)

    def error() -> float:
        wide = [None if tensor is None else tensor.double() for tensor in tensors[:-1]]
        attributes = spec.complete_attributes({}).values()
        expected = speculative_reference(SPECULATIVE_OPS[op], REFERENCES[op])(*wide, *about_rows, *attributes)
        run()
        return max(
            float((found.double() - wanted).norm() / wanted.norm())
            for found, wanted in zip((y, pool), expected, strict=True)
        )

    return Prepared(run, error)


def _normal(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda")


def _ssm(tokens: int) -> list[torch.Tensor | None]:
    """All inputs but the pool and the lengths."""
    sizes = [HEADS * HEAD_DIM, GROUPS * STATE_SIZE, GROUPS * STATE_SIZE, HEADS]
    x, B, C, dt = _normal(tokens, sum(sizes)).to(torch.bfloat16).split(sizes, -1)
    group, A = (GROUPS, STATE_SIZE), -8 * torch.rand(HEADS, device="cuda")
    parts = [x.unflatten(-1, (HEADS, HEAD_DIM)), A, B.unflatten(-1, group), C.unflatten(-1, group), _normal(HEADS), dt]
    return [*parts, _normal(HEADS)]


def _delta(tokens: int) -> list[torch.Tensor | None]:
    keys, values = KEY_HEADS * SIZE, VALUE_HEADS * SIZE
    q, k, v = _normal(tokens, 2 * keys + values).to(torch.bfloat16).split([keys, keys, values], -1)
    g = -torch.nn.functional.softplus(_normal(tokens, VALUE_HEADS, 1) - 2.0)
    beta = torch.sigmoid(_normal(tokens, VALUE_HEADS)).to(torch.bfloat16)
    return [*(tensor.unflatten(-1, (-1, SIZE)) for tensor in (q, k, v)), g, beta]


def _conv(tokens: int) -> list[torch.Tensor | None]:
    weight = _normal(CHANNELS, 1, KERNEL) / math.sqrt(KERNEL)
    return [
        _normal(tokens, CHANNELS).to(torch.bfloat16),
        weight.to(torch.bfloat16),
        _normal(CHANNELS).to(torch.bfloat16),
    ]
