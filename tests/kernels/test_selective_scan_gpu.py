"""``selective_scan`` on the GPU against the float64 reference, on fresh outputs full of NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from hybridge.trt_plugins.reference.selective_scan import selective_scan
from tests.support.kernel_calls import run_op

pytestmark = pytest.mark.gpu

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Relative norm against float64: float sums in another order, and one rounding of y and of the state.
TOLERANCE = {F32: 1e-5, F16: 1e-3, BF16: 3e-3}
NAN = float("nan")


@dataclass(frozen=True)
class Case:
    """time None is the form without a token axis. gap: elements between the rows of x, B, C and dt, which are then
    slices of one wider tensor. rate: A lies between -rate and 0. dt_scale: the factor of dt."""

    lengths: tuple[int, ...] = (1, 1, 0)
    time: int | None = None
    channels: int = 200
    groups: int = 1
    state_size: int = 16
    dtype: torch.dtype = BF16
    state: torch.dtype = F32
    side: torch.dtype = F32
    gap: int = 0
    rate: float = 16.0
    dt_scale: float = 1.0
    softplus: int = 1
    limits: tuple[float, float] = (0.0, math.inf)

    @property
    def attributes(self) -> dict[str, object]:
        low, high = self.limits
        return {"dt_softplus": self.softplus, "time_step_min": low, "time_step_max": high}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def inputs_of(case: Case) -> list[torch.Tensor]:
    """The inputs in declared order; NaN in padding tokens."""
    torch.manual_seed(0)
    lead = (len(case.lengths), case.time) if case.time else (len(case.lengths),)
    sizes = [case.channels, case.groups * case.state_size, case.groups * case.state_size, case.channels]
    x, B, C, dt = normal(*lead, sum(sizes) + case.gap).to(case.dtype)[..., case.gap :].split(sizes, -1)
    dt.copy_((dt.float() * case.dt_scale).abs() if not case.softplus else dt.float() * case.dt_scale)
    lengths = torch.tensor(case.lengths, dtype=torch.int32, device="cuda")
    for row, length in enumerate(case.lengths):
        for part in (x, B, C, dt):
            if case.time:
                part[row, length:] = NAN
            elif length < 1:
                part[row] = NAN
    group = (case.groups, case.state_size)
    A = -case.rate * torch.rand(case.channels, case.state_size, device="cuda")
    D, bias = normal(case.channels).to(case.side), normal(case.channels).abs().to(case.side)
    state = normal(len(case.lengths), 1, case.channels, case.state_size).to(case.state)
    return [x, A, B.unflatten(-1, group), C.unflatten(-1, group), D, dt, bias, state, lengths]


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm().clamp_min(1e-30))


def check(case: Case, in_place: bool = False) -> None:
    inputs = inputs_of(case)
    state = inputs[7].clone()
    y = torch.full(inputs[0].shape, NAN, dtype=case.dtype, device="cuda")
    state_out = state if in_place else torch.full_like(state, NAN)
    run_op("selective_scan", [*inputs[:7], state, inputs[8]], [y, state_out], case.attributes)
    arguments: list[Any] = [*(tensor.double() for tensor in inputs[:8]), inputs[8], case.softplus, *case.limits]
    expected_y, expected_state = selective_scan(*arguments)
    assert relative(y, expected_y) <= TOLERANCE[case.dtype], f"y: relative error {relative(y, expected_y):.3g}"
    error = relative(state_out, expected_state)
    assert error <= TOLERANCE[case.state], f"state: relative error {error:.3g}"
    assert bool((y[expected_y == 0] == 0).all()), "y of padding"
    assert torch.equal(state_out[inputs[8] < 1], inputs[7][inputs[8] < 1]), "state of an empty row"


@pytest.mark.parametrize("time", [None, 40])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("dtype", "state"), [(F32, F32), (F16, F32), (F16, F16), (BF16, F32), (BF16, BF16)], ids=str)
def test_types(dtype, state, in_place, time):
    lengths = (40, 0, 33) if time else (1, 0, 1)
    check(Case(lengths, time, dtype=dtype, state=state, side=dtype), in_place)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("time", [1, 2, 31, 32, 33, 63, 64, 65, 127, 500])
def test_lengths(time, dtype):
    check(Case((time, max(time - 3, 0), time // 2, 0), time, dtype=dtype))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("state", [F32, BF16], ids=str)
@pytest.mark.parametrize("time", [256, 1000, 4097])
@pytest.mark.parametrize("changes", [{}, {"channels": 96, "groups": 3}, {"state_size": 40}, {"gap": 1}], ids=str)
def test_rows_cut_into_chunks(changes, time, state, in_place):
    lengths = (time, 1, 0, time // 2 + 1, time - 1, time // 4, 128, 129)
    check(Case(lengths, time, state=state, **changes), in_place)


@pytest.mark.parametrize("changes", [{"rate": 1e30}, {"rate": 1e-6}, {"dt_scale": 1e4}], ids=str)
def test_extreme_decays_over_chunks(changes):
    check(Case((1000, 999), 1000, dtype=F32, **changes), in_place=True)


@pytest.mark.parametrize("time", [None, 35])
@pytest.mark.parametrize("state_size", (1, *range(8, 65, 8)))
@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (33, 1), (96, 3), (1536, 1), (10, 2)])
def test_sizes(channels, groups, state_size, time):
    lengths = (35, 7) if time else (1, 1)
    check(Case(lengths, time, channels, groups, state_size))


@pytest.mark.parametrize("time", [None, 35])
@pytest.mark.parametrize("gap", [1, 3, 8, 64])
def test_slices_of_a_wider_tensor(gap, time):
    check(Case((35, 7) if time else (1, 0), time, gap=gap))


@pytest.mark.parametrize("time", [None, 70])
@pytest.mark.parametrize(
    "changes",
    [
        {"rate": 1e30},
        {"rate": 1e-30},
        {"dt_scale": 1e4},
        {"softplus": 0},
        {"limits": (0.05, 0.1)},
        {"limits": (0.0, 0.2), "softplus": 0},
    ],
    ids=str,
)
def test_extreme_decays_and_limits(changes, time):
    check(Case((70, 35) if time else (1, 1), time, dtype=F32, **changes))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_many_rows(dtype):
    check(Case((1,) * 300, channels=72, dtype=dtype))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gap": 1},
        {"channels": 1530, "groups": 3},
        {"state_size": 8},
        {"state_size": 1},
        {"dtype": F16, "side": F16},
        {"dtype": F32},
    ],
    ids=str,
)
@pytest.mark.parametrize("state", [F32, None], ids=str)
def test_several_rows_in_a_block(changes, state):
    """The last block has fewer. state None: the type of the data."""
    case = {"channels": 1536, "dtype": BF16, **changes}
    check(Case((1, 0, *(1,) * 61), **{**case, "state": state or case["dtype"]}), in_place=True)
