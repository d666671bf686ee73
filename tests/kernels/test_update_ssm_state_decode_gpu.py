"""One-token ``update_ssm_state`` on the GPU against the float64 reference, on fresh outputs full of NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state
from tests.support.kernel_calls import run_op

pytestmark = pytest.mark.gpu

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Relative norm against float64: float sums in another order, and one rounding of y and of the state.
TOLERANCE = {F32: 1e-5, F16: 1e-3, BF16: 3e-3}
NAN = float("nan")


@dataclass(frozen=True)
class Case:
    """time None is the form without a token axis. gap: elements between the rows of x, B, C and dt, which are then
    slices of one wider tensor. decay: A is drawn between -decay and 0."""

    rows: int = 3
    time: int | None = None
    heads: int = 6
    head_dim: int = 64
    groups: int = 2
    state_size: int = 128
    dtype: torch.dtype = BF16
    state: torch.dtype = F32
    scalars: torch.dtype = F32
    gap: int = 0
    lengths: tuple[int, ...] | None = None
    softplus: int = 1
    limits: tuple[float, float] = (0.0, math.inf)
    decay: float = 8.0

    def __str__(self) -> str:
        changed = [f"{k}={v}" for k, v in vars(self).items() if v != getattr(type(self), k)]
        return ",".join(changed) or "base"

    @property
    def attributes(self) -> dict[str, object]:
        return {"dt_softplus": self.softplus, "time_step_min": self.limits[0], "time_step_max": self.limits[1]}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def inputs_of(case: Case) -> list[torch.Tensor]:
    """x, A, B, C, D, dt, dt_bias, state, context_lengths; NaN in the tokens of rows without one."""
    torch.manual_seed(0)
    shared = (case.rows, case.time) if case.time else (case.rows,)
    sizes = [case.heads * case.head_dim, case.groups * case.state_size, case.groups * case.state_size, case.heads]
    if case.gap:
        parts = list(normal(*shared, sum(sizes) + case.gap).to(case.dtype)[..., case.gap :].split(sizes, -1))
    else:
        parts = [normal(*shared, size).to(case.dtype) for size in sizes]
    lengths = torch.tensor(case.lengths or [1] * case.rows, dtype=torch.int32, device="cuda")
    for part in parts:
        part[lengths < 1] = NAN
    x, B, C, dt = parts
    A = -case.decay * torch.rand(case.heads, device="cuda")
    D, dt_bias = (normal(case.heads).to(case.scalars) for _ in range(2))
    state = normal(case.rows, case.heads, case.head_dim, case.state_size).to(case.state)
    groups = (case.groups, case.state_size)
    heads = (case.heads, case.head_dim)
    return [
        x.unflatten(-1, heads), A, B.unflatten(-1, groups), C.unflatten(-1, groups), D, dt, dt_bias, state, lengths
    ]  # fmt: skip


def run(case: Case, inputs: list[torch.Tensor], in_place: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.full(inputs[0].shape, NAN, dtype=case.dtype, device="cuda")
    state = inputs[7].clone()
    state_out = state if in_place else torch.full_like(state, NAN)
    run_op("update_ssm_state", [*inputs[:7], state, inputs[8]], [y, state_out], case.attributes)
    return y, state_out


def reference(case: Case, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    arguments: list[Any] = [*(tensor.double() for tensor in inputs[:8]), inputs[8], case.softplus, *case.limits, 1]
    return update_ssm_state(*arguments)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm().clamp_min(1e-30))


def check(case: Case, in_place: bool = False) -> None:
    inputs = inputs_of(case)
    y, state = run(case, inputs, in_place)
    expected_y, expected_state = reference(case, inputs)
    error = relative(y, expected_y)
    assert error <= TOLERANCE[case.dtype], f"y: relative error {error:.3g}"
    error = relative(state, expected_state)
    assert error <= TOLERANCE[case.state], f"state: relative error {error:.3g}"
    skipped = inputs[8] < 1
    assert torch.equal(state[skipped], inputs[7][skipped]), "state of an empty row"


BASE = Case()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("dtype", "state", "scalars"),
    [(F32, F32, F32), (F16, F32, F32), (F16, F16, F16), (BF16, F32, BF16), (BF16, BF16, F32), (BF16, BF16, BF16)],
    ids=str,
)
def test_types(dtype, state, scalars, in_place):
    check(Case(dtype=dtype, state=state, scalars=scalars), in_place)


@pytest.mark.parametrize("state", [F32, BF16], ids=str)
@pytest.mark.parametrize("state_size", [8, 16, 24, 40, 64, 72, 80, 96, 128, 136, 200, 256])
def test_state_sizes(state_size, state):
    check(Case(state_size=state_size, state=state))


@pytest.mark.parametrize("state_size", [16, 128, 256])
@pytest.mark.parametrize("head_dim", [8, 16, 24, 56, 64, 72, 80, 96, 128, 256])
def test_head_dims(head_dim, state_size):
    check(Case(head_dim=head_dim, state_size=state_size))


@pytest.mark.parametrize("rows", [1, 2, 9, 40, 300])
@pytest.mark.parametrize("state", [F32, BF16], ids=str)
def test_rows(rows, state):
    check(Case(rows=rows, heads=16, state=state), in_place=True)


@pytest.mark.parametrize(
    "change",
    [
        {"groups": 1},
        {"groups": 6},
        {"heads": 1, "groups": 1},
        {"time": 1},
        {"gap": 8},
        {"gap": 6},
        {"gap": 3},
        {"time": 1, "gap": 64},
        {"softplus": 0, "limits": (-math.inf, math.inf)},
        {"limits": (0.5, 1.0)},
        {"decay": 1e-3},
        {"decay": 300.0},
        {"lengths": (1, 0, 1)},
        {"lengths": (-1, 5, 0)},
    ],
    ids=str,
)
@pytest.mark.parametrize("in_place", [False, True])
def test_one_factor(change, in_place):
    check(replace(BASE, **change), in_place)


@pytest.mark.parametrize("state", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_an_empty_row_keeps_every_bit_of_its_state(state, in_place):
    case = Case(dtype=BF16 if state is F32 else state, state=state, lengths=(0, 1, 0))
    inputs = inputs_of(case)
    bits = torch.int32 if state is F32 else torch.int16
    inputs[7].view(bits)[0] = torch.randint(-(2**15), 2**15, inputs[7][0].shape, device="cuda").to(bits)
    y, found = run(case, inputs, in_place)
    assert torch.equal(found.view(bits)[0], inputs[7].view(bits)[0])
    assert torch.equal(y[0], torch.zeros_like(y[0]))


def packed_call(
    case: Case, slots: list[int], in_place: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Packed tokens of the rows of ``case`` over a pool of slots: y, the pool before and after, the inputs."""
    inputs = inputs_of(case)
    kept = inputs[8] > 0
    pool = normal(max(slots) + 3, case.heads, case.head_dim, case.state_size).to(case.state)
    for row, slot in enumerate(slots):
        if slot >= 0:
            pool[slot] = inputs[7][row]
    before = pool.clone()
    after = pool if in_place else torch.full_like(pool, NAN)
    starts = torch.tensor([0, *torch.cumsum(inputs[8], 0)], dtype=torch.int32, device="cuda")
    indices = torch.tensor(slots, dtype=torch.int32, device="cuda")
    x, B, C, dt = (inputs[i][kept].contiguous() for i in (0, 2, 3, 5))
    y = torch.full_like(x, NAN)
    arguments = [x, inputs[1], B, C, inputs[4], dt, inputs[6], pool, None]
    run_op("update_ssm_state", arguments, [y, after], case.attributes, starts, indices)
    return y, before, after, inputs


@pytest.mark.parametrize("in_place", [False, True])
def test_packed_rows_equal_dense_rows(in_place):
    case, slots = Case(rows=5, lengths=(1, 0, 1, 1, 1)), [4, 0, 6, 2, 5]
    y, before, after, inputs = packed_call(case, slots, in_place)
    dense_y, dense_state = run(case, inputs)
    assert torch.equal(y, dense_y[inputs[8] > 0])
    assert torch.equal(after[slots], dense_state)
    others = [slot for slot in range(len(before)) if slot not in slots]
    untouched = before[others] if in_place else torch.full_like(before[others], NAN)
    assert torch.equal(after[others].nan_to_num(9.0), untouched.nan_to_num(9.0))


@pytest.mark.parametrize("state", [F32, BF16], ids=str)
def test_padding_rows_are_skipped(state):
    case, slots = Case(rows=4, state=state), [2, -1, 0, -1]
    y, before, after, inputs = packed_call(case, slots, in_place=True)
    dense_y, dense_state = run(case, inputs)
    assert y[[1, 3]].isnan().all()
    assert torch.equal(y[[0, 2]], dense_y[[0, 2]])
    assert torch.equal(after[[2, 0]], dense_state[[0, 2]])
    assert torch.equal(after[1], before[1])


def test_states_of_a_wider_pool_keep_what_lies_between_them():
    case = Case()
    inputs = inputs_of(case)
    size = case.heads * case.head_dim * case.state_size
    wide = torch.full((case.rows, size + 12), 7.0, device="cuda")
    wide[:, 4 : size + 4] = inputs[7].flatten(1)
    state = wide[:, 4 : size + 4].unflatten(1, inputs[7].shape[1:])
    y = torch.full(inputs[0].shape, NAN, dtype=case.dtype, device="cuda")
    run_op("update_ssm_state", [*inputs[:7], state, inputs[8]], [y, state], case.attributes)
    assert relative(state, reference(case, inputs)[1]) <= TOLERANCE[F32]
    assert (wide[:, :4] == 7.0).all() and (wide[:, size + 4 :] == 7.0).all()


@pytest.mark.parametrize("state", [F32, BF16], ids=str)
def test_the_error_does_not_grow_with_steps(state):
    case = Case(rows=2, state=state, decay=1e-2)
    inputs = inputs_of(case)
    carried, exact = inputs[7], inputs[7].double()
    for _ in range(500):
        inputs[0] = normal(*inputs[0].shape).to(case.dtype)
        inputs[5] = normal(*inputs[5].shape).to(case.dtype)
        y, carried = run(case, [*inputs[:7], carried, inputs[8]])
        expected_y, exact = reference(case, [*inputs[:7], exact, inputs[8]])
    # A 16-bit state is rounded every step; those roundings add up as a random walk damped by the decay.
    most = 4e-2 if state is BF16 else 3e-3
    assert relative(y, expected_y) <= most
    assert relative(carried, exact) <= (1e-5 if state is F32 else most)


@pytest.mark.parametrize("rows", [1, 64])
def test_results_are_the_same_from_run_to_run(rows):
    case = Case(rows=rows, heads=48)
    inputs = inputs_of(case)
    first = run(case, inputs, in_place=True)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run(case, inputs, in_place=True), strict=True))
