"""``causal_conv1d`` on the GPU against the float64 reference, on fresh outputs full of NaN."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from hybridge.trt_plugins.reference.causal_conv1d import causal_conv1d
from tests.support.kernel_calls import run_op

pytestmark = pytest.mark.gpu

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Relative norm against float64: float sums in another order, and one rounding of y to 16 bits.
TOLERANCE = {F32: 1e-5, F16: 3e-3, BF16: 3e-3}
NAN = float("nan")


@dataclass(frozen=True)
class Case:
    """time None is the decode form. gap: elements between the tokens of x, which is then a slice of a wider tensor."""

    rows: int = 3
    time: int | None = 65
    channels: int = 264
    width: int = 4
    dtype: torch.dtype = BF16
    bias: bool = True
    activation: str = "silu"
    gap: int = 0
    lengths: tuple[int, ...] | None = None

    def __str__(self) -> str:
        changed = [f"{k}={v}" for k, v in vars(self).items() if v != getattr(type(self), k)]
        return ",".join(changed) or "base"


@dataclass
class Inputs:
    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    state: torch.Tensor
    lengths: torch.Tensor

    def reference(self, activation: str) -> tuple[torch.Tensor, torch.Tensor]:
        bias = None if self.bias is None else self.bias.double()
        return causal_conv1d(self.x.double(), self.weight.double(), bias, self.state.double(), self.lengths, activation)


def inputs_of(case: Case) -> Inputs:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").to(case.dtype)

    shape = (
        (case.rows, case.channels + case.gap) if case.time is None else (case.rows, case.time, case.channels + case.gap)
    )
    lengths = torch.tensor(case.lengths or [case.time or 1] * case.rows, dtype=torch.int32, device="cuda")
    return Inputs(
        normal(*shape)[..., case.gap // 2 : case.gap // 2 + case.channels],
        normal(case.channels, 1, case.width),
        normal(case.channels) if case.bias else None,
        normal(case.rows, case.channels, case.width),
        lengths,
    )


def run(inputs: Inputs, activation: str, in_place: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.full(inputs.x.shape, NAN, dtype=inputs.x.dtype, device="cuda")
    state = inputs.state.clone()
    state_out = state if in_place else torch.full_like(state, NAN)
    arguments = [inputs.x, inputs.weight, inputs.bias, state, inputs.lengths]
    run_op("causal_conv1d", arguments, [y, state_out], {"activation": activation})
    return y, state_out


def check(case: Case, in_place: bool = False) -> None:
    torch.manual_seed(0)
    inputs = inputs_of(case)
    y, state = run(inputs, case.activation, in_place)
    expected_y, expected_state = inputs.reference(case.activation)
    error = (y.double() - expected_y).norm() / expected_y.norm().clamp_min(1e-30)
    assert error <= TOLERANCE[case.dtype], f"y: relative error {error:.3g}"
    assert torch.equal(state.double(), expected_state), "state"


BASE = Case()
DECODE = Case(time=None, rows=9)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("width", range(2, 9))
@pytest.mark.parametrize("base", [BASE, DECODE], ids=["prefill", "decode"])
def test_widths_and_types(base, width, dtype, in_place):
    check(replace(base, width=width, dtype=dtype), in_place)


@pytest.mark.parametrize("time", [1, 2, 3, 4, 7, 8, 9, 63, 64, 65, 127, 500, 4096])
def test_lengths(time):
    check(replace(BASE, rows=1, time=time, channels=1000), in_place=True)


@pytest.mark.parametrize("channels", [1, 7, 12, 257, 1022, 10240])
@pytest.mark.parametrize("base", [BASE, DECODE], ids=["prefill", "decode"])
def test_channels(base, channels):
    check(replace(base, channels=channels))


@pytest.mark.parametrize(
    "change",
    [{"bias": False}, {"activation": "none"}, {"gap": 64}, {"gap": 10}, {"gap": 3, "channels": 129}],
    ids=str,
)
@pytest.mark.parametrize("base", [BASE, DECODE], ids=["prefill", "decode"])
def test_one_factor(base, change):
    check(replace(base, **change), in_place=True)


@pytest.mark.parametrize("width", [3, 4, 7])
@pytest.mark.parametrize("rows", [1, 2, 5, 64, 301])
def test_decode_batches(rows, width):
    check(replace(DECODE, rows=rows, channels=10240, width=width), in_place=True)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("width", [3, 5, 6, 7])
@pytest.mark.parametrize("channels", [1, 7, 16, 200, 264, 1022])
def test_decode_widths_that_are_no_power_of_two(channels, width, dtype):
    lengths = tuple(row % 5 and 1 for row in range(63))
    check(replace(DECODE, rows=63, channels=channels, width=width, dtype=dtype, lengths=lengths), in_place=True)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_ragged_rows(width, in_place):
    lengths = (0, 1, 2, 3, 7, 8, 64, 65, 127, 129)
    check(Case(rows=10, time=129, width=width, lengths=lengths), in_place)


def test_lengths_outside_of_the_row_are_clamped():
    check(Case(rows=3, time=5, lengths=(-1, 9, 5)))


@pytest.mark.parametrize("in_place", [False, True])
def test_decode_keeps_the_state_of_an_empty_row(in_place):
    check(replace(DECODE, lengths=(1, 0, 1, 1, 0, 0, 1, 1, 1)), in_place)


@pytest.mark.parametrize("lengths", [(1, 0, 500, 3, 64), (1, 1, 0, 1, 1)], ids=["prefill", "decode"])
@pytest.mark.parametrize("in_place", [False, True])
def test_packed_rows_equal_dense_rows(lengths, in_place):
    torch.manual_seed(1)
    case = Case(rows=5, time=max(lengths), lengths=lengths)
    inputs = inputs_of(case)
    y, state = run(inputs, "silu")
    slots = torch.tensor([4, 0, 7, 2, 5], dtype=torch.int32, device="cuda")
    pool = torch.randn(9, case.channels, case.width, device="cuda").to(case.dtype)
    pool[slots.long()] = inputs.state
    packed_x = torch.cat([inputs.x[row, :length] for row, length in enumerate(lengths)])
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
    packed_y, pool_out = torch.full_like(packed_x, NAN), pool if in_place else torch.full_like(pool, NAN)
    before = pool.clone()
    arguments = [packed_x, inputs.weight, inputs.bias, pool, None]
    run_op("causal_conv1d", arguments, [packed_y, pool_out], {"activation": "silu"}, starts, slots)
    assert torch.equal(packed_y, torch.cat([y[row, :length] for row, length in enumerate(lengths)]))
    assert torch.equal(pool_out[slots.long()], state)
    others = [slot for slot in range(9) if slot not in slots.tolist()]
    untouched = before[others] if in_place else torch.full_like(before[others], NAN)
    assert torch.equal(pool_out[others].nan_to_num(9.0), untouched.nan_to_num(9.0))


@pytest.mark.parametrize("tokens", [1, 40])
def test_padding_rows_are_skipped(tokens):
    torch.manual_seed(2)
    inputs = inputs_of(Case(rows=1, time=4 * tokens))
    pool = torch.randn(3, 264, 4, device="cuda").to(BF16)
    before = pool.clone()
    starts = torch.arange(0, 4 * tokens + 1, tokens, dtype=torch.int32, device="cuda")
    slots = torch.tensor([2, -1, 0, -1], dtype=torch.int32, device="cuda")
    x, y = inputs.x[0], torch.full_like(inputs.x[0], NAN)
    run_op(
        "causal_conv1d", [x, inputs.weight, inputs.bias, pool, None], [y, pool], {"activation": "silu"}, starts, slots
    )
    y, written = y.view(4, tokens, -1), torch.tensor([True, False, True, False], device="cuda")
    assert y[~written].isnan().all()
    alone = replace_rows(inputs, x.view(4, tokens, -1)[written], before[[2, 0]])
    expected_y, expected_state = run(alone, "silu")
    assert torch.equal(y[written], expected_y)
    assert torch.equal(pool, torch.stack([expected_state[1], before[1], expected_state[0]]))


def replace_rows(inputs: Inputs, x: torch.Tensor, state: torch.Tensor) -> Inputs:
    lengths = torch.full((x.shape[0],), x.shape[1], dtype=torch.int32, device="cuda")
    return Inputs(x, inputs.weight, inputs.bias, state, lengths)


@pytest.mark.parametrize("cut", [1, 3, 64])
def test_two_calls_equal_one(cut):
    torch.manual_seed(3)
    inputs = inputs_of(replace(BASE, time=130, lengths=(130, 130, 130)))
    y, state = run(inputs, "silu")
    first_y, carried = run(replace_rows(inputs, inputs.x[:, :cut], inputs.state), "silu")
    second_y, second_state = run(replace_rows(inputs, inputs.x[:, cut:], carried), "silu", in_place=True)
    assert torch.equal(torch.cat([first_y, second_y], 1), y)
    assert torch.equal(second_state, state)


def test_results_are_the_same_from_run_to_run():
    inputs = inputs_of(replace(BASE, time=500, channels=1000))
    first = run(inputs, "silu", in_place=True)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run(inputs, "silu", in_place=True), strict=True))
