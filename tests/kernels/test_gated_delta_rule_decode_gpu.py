"""One-token ``gated_delta_rule`` on the GPU against the float64 reference, on fresh outputs full of NaN."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule
from tests.support.kernel_calls import run_op

pytestmark = pytest.mark.gpu

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Relative norm against float64: float sums in another order, and one rounding of o and of the state.
TOLERANCE = {F32: 1e-5, F16: 1e-3, BF16: 3e-3}
NAN = float("nan")


@dataclass(frozen=True)
class Case:
    """time None is the form without a token axis. gap: elements between the rows of q, k, v and beta, which are then
    slices of one wider tensor. decay_rate: the log of the decay lies between -decay_rate and 0. beta: its factor."""

    rows: int = 3
    time: int | None = None
    key_heads: int = 2
    value_heads: int = 6
    key_size: int = 128
    value_size: int = 128
    dtype: torch.dtype = BF16
    state: torch.dtype = F32
    decay: str = "head"
    norm: int = 1
    scale: float = 0.0
    gap: int = 0
    lengths: tuple[int, ...] | None = None
    decay_rate: float = 1.0
    beta: float = 1.0

    def __str__(self) -> str:
        changed = [f"{k}={v}" for k, v in vars(self).items() if v != getattr(type(self), k)]
        return ",".join(changed) or "base"

    @property
    def attributes(self) -> dict[str, object]:
        return {"decay": self.decay, "use_qk_l2norm": self.norm, "scale": self.scale}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def inputs_of(case: Case) -> list[torch.Tensor]:
    """q, k, v, g, beta, state, context_lengths; NaN in the tokens of rows without one."""
    torch.manual_seed(0)
    shared = (case.rows, case.time) if case.time else (case.rows,)
    keys = case.key_heads * case.key_size
    sizes = [keys, keys, case.value_heads * case.value_size, case.value_heads]
    if case.gap:
        parts = list(normal(*shared, sum(sizes) + case.gap).to(case.dtype)[..., case.gap :].split(sizes, -1))
    else:
        parts = [normal(*shared, size).to(case.dtype) for size in sizes]
    decays = case.key_size if case.decay == "key_channel" else 1
    g = -case.decay_rate * torch.rand(*shared, case.value_heads, decays, device="cuda")
    parts[3].copy_(torch.sigmoid(parts[3].float()) * case.beta)
    if not case.norm:
        parts[1].copy_(parts[1].float() / case.key_size**0.5)
    lengths = torch.tensor(case.lengths or [1] * case.rows, dtype=torch.int32, device="cuda")
    for part in (*parts, g):
        part[lengths < 1] = NAN
    q, k = (part.unflatten(-1, (case.key_heads, case.key_size)) for part in parts[:2])
    v = parts[2].unflatten(-1, (case.value_heads, case.value_size))
    state = normal(case.rows, case.value_heads, case.key_size, case.value_size).to(case.state)
    return [q, k, v, g, parts[3], state, lengths]


def run(case: Case, inputs: list[torch.Tensor], in_place: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    o = torch.full(inputs[2].shape, NAN, dtype=case.dtype, device="cuda")
    state = inputs[5].clone()
    state_out = state if in_place else torch.full_like(state, NAN)
    run_op("gated_delta_rule", [*inputs[:5], state, inputs[6]], [o, state_out], case.attributes)
    return o, state_out


def reference(case: Case, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    wide = [tensor.double() for tensor in inputs[:6]]
    arguments: list[Any] = [*wide, inputs[6], case.decay, case.norm, case.scale, 1]
    return gated_delta_rule(*arguments)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm().clamp_min(1e-30))


def check(case: Case, in_place: bool = False) -> None:
    inputs = inputs_of(case)
    o, state = run(case, inputs, in_place)
    expected_o, expected_state = reference(case, inputs)
    error = relative(o, expected_o)
    assert error <= TOLERANCE[case.dtype], f"o: relative error {error:.3g}"
    error = relative(state, expected_state)
    assert error <= TOLERANCE[case.state], f"state: relative error {error:.3g}"
    skipped = inputs[6] < 1
    assert torch.equal(state[skipped], inputs[5][skipped]), "state of an empty row"
    assert bool((o[skipped] == 0).all()), "o of an empty row"


BASE = Case()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("decay", ["head", "key_channel"])
@pytest.mark.parametrize(("dtype", "state"), [(F32, F32), (F16, F32), (F16, F16), (BF16, F32), (BF16, BF16)], ids=str)
def test_types(dtype, state, decay, in_place):
    check(Case(dtype=dtype, state=state, decay=decay), in_place)


@pytest.mark.parametrize("state", [F32, BF16], ids=str)
@pytest.mark.parametrize("value_size", [8, 16, 24, 48, 64, 96, 128, 192, 240, 256])
@pytest.mark.parametrize("key_size", [8, 16, 40, 48, 64, 96, 128, 192, 240, 256])
def test_sizes(key_size, value_size, state):
    check(Case(rows=2, key_heads=1, value_heads=2, key_size=key_size, value_size=value_size, state=state))


# Of 32 heads of 128 x 128: few bytes per multiprocessor, blocks that all run at once, and more.
@pytest.mark.parametrize("rows", [1, 8, 40])
@pytest.mark.parametrize("state", [F32, BF16], ids=str)
@pytest.mark.parametrize("decay", ["head", "key_channel"])
def test_rows(rows, state, decay):
    check(Case(rows=rows, key_heads=16, value_heads=32, state=state, decay=decay), in_place=True)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("dtype", "decay"), [(F16, "head"), (BF16, "head"), (BF16, "key_channel")], ids=str)
@pytest.mark.parametrize(("key_size", "value_size"), [(128, 128), (64, 64), (96, 256), (256, 128)])
def test_many_states_of_16_bits(key_size, value_size, dtype, decay, in_place):
    """More bytes than all multiprocessors hold at once, where whole rows of blocks go through tensor cores."""
    rows = 20_000_000 // (32 * key_size * value_size * 2) + 1
    lengths = tuple(row % 5 and 1 for row in range(rows))
    sizes = {"key_heads": 16, "value_heads": 32, "key_size": key_size, "value_size": value_size}
    check(Case(rows=rows, dtype=dtype, state=dtype, lengths=lengths, decay=decay, **sizes), in_place)


@pytest.mark.parametrize("decay_rate", [1e-4, 30.0])
def test_many_states_of_16_bits_with_extreme_decays_of_channels(decay_rate):
    case = Case(rows=64, key_heads=16, value_heads=32, dtype=BF16, state=BF16, decay="key_channel")
    check(replace(case, decay_rate=decay_rate), in_place=True)


@pytest.mark.parametrize(
    "change",
    [
        {"key_heads": 1},
        {"key_heads": 6},
        {"key_heads": 1, "value_heads": 1},
        {"time": 1},
        {"gap": 8},
        {"gap": 6},
        {"gap": 3},
        {"time": 1, "gap": 64},
        {"norm": 0},
        {"scale": 0.3},
        {"beta": 2.0},
        {"decay_rate": 1e-4},
        {"decay_rate": 300.0},
        {"lengths": (1, 0, 1)},
        {"lengths": (-1, 5, 0)},
        {"decay": "key_channel", "decay_rate": 30.0},
        {"decay": "key_channel", "lengths": (0, 1, 0)},
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
    inputs[5].view(bits)[0] = torch.randint(-(2**15), 2**15, inputs[5][0].shape, device="cuda").to(bits)
    o, found = run(case, inputs, in_place)
    assert torch.equal(found.view(bits)[0], inputs[5].view(bits)[0])
    assert torch.equal(o[0], torch.zeros_like(o[0]))


def packed_call(
    case: Case, slots: list[int], in_place: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Packed tokens of the rows of ``case`` over a pool of slots: o, the pool before and after, the inputs."""
    inputs = inputs_of(case)
    kept = inputs[6] > 0
    pool = normal(max(slots) + 3, case.value_heads, case.key_size, case.value_size).to(case.state)
    for row, slot in enumerate(slots):
        if slot >= 0:
            pool[slot] = inputs[5][row]
    before = pool.clone()
    after = pool if in_place else torch.full_like(pool, NAN)
    starts = torch.tensor([0, *torch.cumsum(inputs[6], 0)], dtype=torch.int32, device="cuda")
    indices = torch.tensor(slots, dtype=torch.int32, device="cuda")
    tokens = [inputs[i][kept].contiguous() for i in range(5)]
    o = torch.full_like(tokens[2], NAN)
    run_op("gated_delta_rule", [*tokens, pool, None], [o, after], case.attributes, starts, indices)
    return o, before, after, inputs


@pytest.mark.parametrize("in_place", [False, True])
def test_packed_rows_equal_dense_rows(in_place):
    case, slots = Case(rows=5, lengths=(1, 0, 1, 1, 1)), [4, 0, 6, 2, 5]
    o, before, after, inputs = packed_call(case, slots, in_place)
    dense_o, dense_state = run(case, inputs)
    assert torch.equal(o, dense_o[inputs[6] > 0])
    assert torch.equal(after[slots], dense_state)
    others = [slot for slot in range(len(before)) if slot not in slots]
    untouched = before[others] if in_place else torch.full_like(before[others], NAN)
    assert torch.equal(after[others].nan_to_num(9.0), untouched.nan_to_num(9.0))


@pytest.mark.parametrize("state", [F32, BF16], ids=str)
def test_padding_rows_are_skipped(state):
    case, slots = Case(rows=4, state=state), [2, -1, 0, -1]
    o, before, after, inputs = packed_call(case, slots, in_place=True)
    dense_o, dense_state = run(case, inputs)
    assert o[[1, 3]].isnan().all()
    assert torch.equal(o[[0, 2]], dense_o[[0, 2]])
    assert torch.equal(after[[2, 0]], dense_state[[0, 2]])
    assert torch.equal(after[1], before[1])


def test_states_of_a_wider_pool_keep_what_lies_between_them():
    case = Case()
    inputs = inputs_of(case)
    size = case.value_heads * case.key_size * case.value_size
    wide = torch.full((case.rows, size + 12), 7.0, device="cuda")
    wide[:, 4 : size + 4] = inputs[5].flatten(1)
    state = wide[:, 4 : size + 4].unflatten(1, inputs[5].shape[1:])
    o = torch.full(inputs[2].shape, NAN, dtype=case.dtype, device="cuda")
    run_op("gated_delta_rule", [*inputs[:5], state, inputs[6]], [o, state], case.attributes)
    assert relative(state, reference(case, inputs)[1]) <= TOLERANCE[F32]
    assert (wide[:, :4] == 7.0).all() and (wide[:, size + 4 :] == 7.0).all()


@pytest.mark.parametrize("state", [F32, BF16], ids=str)
def test_the_error_does_not_grow_with_steps(state):
    case = Case(rows=2, state=state, decay_rate=1e-2)
    inputs = inputs_of(case)
    carried, exact = inputs[5], inputs[5].double()
    for _ in range(500):
        for index in range(3):
            inputs[index] = normal(*inputs[index].shape).to(case.dtype)
        o, carried = run(case, [*inputs[:5], carried, inputs[6]])
        expected_o, exact = reference(case, [*inputs[:5], exact, inputs[6]])
    # A 16-bit state is rounded every step; those roundings add up as a random walk that the deltas damp.
    most = 4e-2 if state is BF16 else 3e-3
    assert relative(o, expected_o) <= most
    assert relative(carried, exact) <= (1e-5 if state is F32 else most)


@pytest.mark.parametrize(
    "change",
    [
        {"time": 500, "key_size": 40, "value_size": 24},
        {"time": 500, "key_size": 40, "value_size": 24, "decay": "key_channel"},
        {"time": 500, "key_size": 40, "value_size": 24, "dtype": F16, "state": F16},
        {"time": 500, "key_size": 200, "value_size": 136, "rows": 40},
        {"time": 8},
        {"time": 30, "decay": "key_channel"},
    ],
    ids=str,
)
def test_walked_tokens_round_a_16_bit_state_once(change):
    case = replace(Case(rows=2, state=BF16, decay_rate=1e-2), **change)
    check(replace(case, lengths=(case.time,) * case.rows), in_place=True)


@pytest.mark.parametrize("rows", [1, 64])
def test_results_are_the_same_from_run_to_run(rows):
    case = Case(rows=rows, key_heads=16, value_heads=32)
    inputs = inputs_of(case)
    first = run(case, inputs, in_place=True)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run(case, inputs, in_place=True), strict=True))
