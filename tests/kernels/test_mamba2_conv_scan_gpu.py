"""``mamba2_conv_scan`` on the GPU against the float64 reference: in one launch, and as the kernels of its parts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from hybridge.trt_plugins.kernels.call import DeviceTraits, PackedRows
from hybridge.trt_plugins.kernels.catalog import plan
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.reference.mamba2_conv_scan import mamba2_conv_scan
from tests.support.kernel_calls import op_call, run_plan

pytestmark = pytest.mark.gpu

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Relative norm against float64: float sums, one rounding of y and of the state; the parts also round x, B and C.
TOLERANCE = {F32: 1e-5, F16: 2e-3, BF16: 8e-3}
NAN = float("nan")
OP = "mamba2_conv_scan"
NAMES = ("conv_input", "gate", "dt", "weight", "bias", "A", "D", "dt_bias", "conv_state", "state", "lengths")


@dataclass(frozen=True)
class Case:
    """time None is the form without a token axis. gap: elements between the tokens of a wider tensor that the inputs
    are slices of."""

    rows: int = 3
    time: int | None = None
    heads: int = 8
    head_dim: int = 64
    groups: int = 2
    state_size: int = 128
    kernel: int = 4
    dtype: torch.dtype = BF16
    state: torch.dtype = F32
    bias: bool = True
    activation: str = "silu"
    softplus: int = 1
    gap: int = 0
    lengths: tuple[int, ...] | None = None

    def __str__(self) -> str:
        changed = [f"{k}={v}" for k, v in vars(self).items() if v != getattr(type(self), k)]
        return ",".join(changed) or "base"

    @property
    def attributes(self) -> dict[str, object]:
        return {"activation": self.activation, "dt_softplus": self.softplus}


def inputs_of(case: Case) -> dict[str, torch.Tensor | None]:
    torch.manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda")

    inner = case.heads * case.head_dim
    channels = inner + 2 * case.groups * case.state_size
    shared = (case.rows, case.time) if case.time else (case.rows,)
    sizes = [inner, channels, case.heads]
    wide = normal(*shared, sum(sizes) + case.gap).to(case.dtype)
    gate, conv_input, dt = wide[..., case.gap :].split(sizes, -1)
    lengths = torch.tensor(case.lengths or [case.time or 1] * case.rows, dtype=torch.int32, device="cuda")
    wide[torch.arange(case.time or 1, device="cuda").expand(shared) >= lengths.view(-1, *[1] * (len(shared) - 1))] = NAN
    parameters = [-8 * torch.rand(case.heads, device="cuda"), normal(case.heads), normal(case.heads)]
    bias = normal(channels).to(case.dtype) if case.bias else None
    states = (
        normal(case.rows, channels, case.kernel).to(case.dtype),
        normal(case.rows, case.heads, case.head_dim, case.state_size).to(case.state),
    )
    weight = (normal(channels, 1, case.kernel) / 2).to(case.dtype)
    return dict(zip(NAMES, (conv_input, gate, dt, weight, bias, *parameters, *states, lengths), strict=True))


def traits(parts: bool) -> DeviceTraits:
    """The device's; with ``parts`` those of one without clusters, whose plans run here too."""
    found = KernelDevice.current().traits
    return replace(found, capability=(8, 0)) if parts else found


def run(
    case: Case, inputs: dict[str, torch.Tensor | None], in_place: bool = False, parts: bool = False
) -> tuple[torch.Tensor, ...]:
    y = torch.full(inputs["gate"].shape, NAN, dtype=case.dtype, device="cuda")
    conv_state, state = inputs["conv_state"].clone(), inputs["state"].clone()
    outputs = (conv_state, state) if in_place else (torch.full_like(conv_state, NAN), torch.full_like(state, NAN))
    arguments = list({**inputs, "conv_state": conv_state, "state": state}.values())
    chosen = plan(op_call(OP, arguments, [y, *outputs], case.attributes), traits(parts))
    run_plan(chosen, arguments, [y, *outputs])
    return y, *outputs, torch.tensor(len(chosen.launches))


def reference(case: Case, inputs: dict[str, torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
    arguments: list[Any] = [None if t is None else t.double() for t in list(inputs.values())[:10]]
    arguments += [inputs["lengths"], case.activation, case.softplus, 0.0, math.inf, 64]
    return mamba2_conv_scan(*arguments)


def check(case: Case, in_place: bool = False, parts: bool = False) -> None:
    inputs = inputs_of(case)
    y, conv_state, state, launches = run(case, inputs, in_place, parts)
    expected_y, expected_conv, expected_state = reference(case, inputs)
    assert torch.equal(conv_state.double(), expected_conv), "conv_state"
    for name, found, expected, dtype in (
        ("y", y, expected_y, case.dtype),
        ("state", state, expected_state, case.state),
    ):
        error = (found.double() - expected).norm() / expected.norm().clamp_min(1e-30)
        # What several launches round on the way to a float state are the 16-bit outputs of the convolution.
        most = TOLERANCE[case.dtype] if launches > 1 else TOLERANCE[dtype]
        assert error <= most, f"{name}: relative error {error:.3g}"


BASE = Case()
CHANGES = [
    {"groups": 1},
    {"groups": 8},
    {"heads": 48, "groups": 1},
    {"heads": 6, "groups": 1},
    {"heads": 32, "groups": 1},
    {"heads": 128, "groups": 8, "rows": 8},
    {"head_dim": 80},
    {"head_dim": 8, "state_size": 8},
    {"head_dim": 72, "state_size": 40},
    {"head_dim": 128, "state_size": 64},
    {"head_dim": 256, "state_size": 256, "heads": 4},
    {"kernel": 2},
    {"kernel": 3},
    {"kernel": 8},
    {"dtype": F32},
    {"dtype": F16},
    {"state": BF16},
    {"dtype": F16, "state": F16},
    {"bias": False},
    {"activation": "none"},
    {"softplus": 0},
    {"time": 1},
    {"gap": 8},
    {"gap": 3},
    {"lengths": (1, 0, 1)},
    {"rows": 65},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("parts", [False, True], ids=["one launch", "parts"])
def test_one_factor(change, parts):
    check(replace(BASE, **change), in_place=True, parts=parts)


@pytest.mark.parametrize("change", [{}, {"lengths": (0, 1, 0)}, {"heads": 48, "groups": 1}], ids=str)
@pytest.mark.parametrize("parts", [False, True], ids=["one launch", "parts"])
def test_out_of_place(change, parts):
    check(replace(BASE, **change), parts=parts)


PROMPTS = [
    {},
    {"gap": 8},
    {"gap": 4},
    {"gap": 3},
    {"dtype": F32},
    {"dtype": F32, "gap": 3},
    {"dtype": F16},
    {"heads": 48, "groups": 1},
    {"head_dim": 80, "gap": 2},
    {"head_dim": 72, "state_size": 40},
    {"head_dim": 256, "state_size": 256, "heads": 4},
]


@pytest.mark.parametrize("time", [2, 63, 65, 130, 500])
@pytest.mark.parametrize("change", PROMPTS, ids=str)
@pytest.mark.parametrize("portable", [False, True])
def test_prompts(time, change, portable):
    """500 tokens run in segments where a row is few blocks."""
    check(replace(BASE, time=time, lengths=(time, time // 2, 0), **change), in_place=True, parts=portable)


@pytest.mark.parametrize("change", [{}, {"gap": 3}, {"dtype": F32}, {"heads": 48, "groups": 1}], ids=str)
@pytest.mark.parametrize("portable", [False, True])
def test_packed_prompts_equal_dense_ones_and_padding_rows_are_skipped(change, portable):
    lengths, slots = (1, 0, 500, 3, 64), [4, 0, -1, 2, 5]
    case = replace(BASE, rows=5, time=500, lengths=lengths, **change)
    inputs = inputs_of(case)
    dense_y, dense_conv, dense_state, _ = run(case, inputs, parts=portable)
    packed = {**inputs, "lengths": None}
    # One projection of all tokens, so that its slices keep their strides.
    wide = torch.cat(
        [torch.cat([inputs[n][row, :length] for n in NAMES[:3]], -1) for row, length in enumerate(lengths)]
    )
    wide = torch.cat([wide.new_full((len(wide), case.gap), NAN), wide], -1)
    conv_input, gate, dt = inputs["conv_input"].shape[-1], inputs["gate"].shape[-1], case.heads
    _, packed["conv_input"], packed["gate"], packed["dt"] = wide.split([case.gap, conv_input, gate, dt], -1)
    for name in ("conv_state", "state"):
        packed[name] = torch.full((6, *inputs[name].shape[1:]), NAN, dtype=inputs[name].dtype, device="cuda")
        for row, slot in enumerate(slots):
            if slot >= 0:
                packed[name][slot] = inputs[name][row]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
    y = torch.full_like(packed["gate"], NAN, memory_format=torch.contiguous_format)
    arguments, outputs = list(packed.values()), [y, packed["conv_state"], packed["state"]]
    call = op_call(OP, arguments, outputs, case.attributes, PackedRows(5, 500))
    run_plan(plan(call, traits(portable)), arguments, outputs, (starts, torch.tensor(slots, dtype=torch.int32).cuda()))
    for row, (length, slot) in enumerate(zip(lengths, slots, strict=True)):
        part = y[starts[row] : starts[row + 1]]
        assert torch.equal(part, dense_y[row, :length]) if slot >= 0 else part.isnan().all()
        if slot >= 0:
            assert torch.equal(packed["conv_state"][slot], dense_conv[row])
            assert torch.equal(packed["state"][slot], dense_state[row])
    assert all(packed[name][[1, 3]].isnan().all() for name in ("conv_state", "state"))


@pytest.mark.parametrize("parts", [False, True], ids=["one launch", "parts"])
def test_packed_rows_equal_dense_rows_and_padding_rows_are_skipped(parts):
    case, slots = Case(rows=5), [4, -1, 6, 2, 0]
    inputs = inputs_of(case)
    dense_y, dense_conv, dense_state, _ = run(case, inputs, parts=parts)
    kept = torch.tensor([slot >= 0 for slot in slots], device="cuda")
    pools = {name: torch.randn(7, *inputs[name].shape[1:], device="cuda").to(inputs[name].dtype)
             for name in ("conv_state", "state")}  # fmt: skip
    places = torch.tensor(slots, device="cuda")[kept]
    for name, pool in pools.items():
        pool[places] = inputs[name][kept]
    before = {name: pool.clone() for name, pool in pools.items()}
    starts = torch.arange(6, dtype=torch.int32, device="cuda")
    indices = torch.tensor(slots, dtype=torch.int32, device="cuda")
    y = torch.full_like(inputs["gate"], NAN)
    arguments = list({**inputs, **pools, "lengths": None}.values())
    outputs = [y, pools["conv_state"], pools["state"]]
    chosen = plan(op_call(OP, arguments, outputs, case.attributes, PackedRows(5, 1)), traits(parts))
    run_plan(chosen, arguments, outputs, (starts, indices))
    assert torch.equal(y[kept], dense_y[kept]) and y[~kept].isnan().all()
    assert torch.equal(pools["conv_state"][places], dense_conv[kept])
    assert torch.equal(pools["state"][places], dense_state[kept])
    others = [slot for slot in range(7) if slot not in slots]
    assert all(torch.equal(pools[name][others], before[name][others]) for name in pools)


@pytest.mark.parametrize("rows", [1, 8])
def test_results_are_the_same_from_run_to_run(rows):
    case = Case(rows=rows, heads=128, groups=8)
    inputs = inputs_of(case)
    first = run(case, inputs, in_place=True)
    assert first[-1] == (1 if rows == 1 else 2)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run(case, inputs, in_place=True), strict=True))
