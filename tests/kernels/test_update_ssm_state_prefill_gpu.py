"""Chunked ``update_ssm_state`` on the GPU against the float64 reference, on fresh outputs full of NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, Memory, PackedRows, PointerSource
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.ops import update_ssm_state_prefill_registers
from hybridge.trt_plugins.kernels.ops.update_ssm_state_prefill import plan_prefill
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state
from tests.support.kernel_calls import layout_of, op_call, run_plan

pytestmark = pytest.mark.gpu

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Relative norm against float64. float: sums in another order. 16 bits: operands of the products are rounded once each.
TOLERANCE = {F32: 1e-5, F16: 3e-3, BF16: 3e-3}
STATE_TOLERANCE = {F32: 0.0, F16: 1e-3, BF16: 3e-3}  # one rounding of the state on top
NAN = float("nan")


@dataclass(frozen=True)
class Case:
    """gap: elements between the tokens of x, B, C and dt, which are then slices of one wider tensor.

    decay: A is drawn between -decay and 0. portable: planned as for a GPU without Hopper's instructions. registers:
    with states in registers there, also where rows are short.
    """

    rows: int = 2
    time: int = 200
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
    portable: bool = False
    registers: bool = False

    def __str__(self) -> str:
        changed = [f"{k}={v}" for k, v in vars(self).items() if v != getattr(type(self), k)]
        return ",".join(changed) or "base"

    @property
    def traits(self) -> DeviceTraits:
        traits = KernelDevice.current().traits
        return replace(traits, capability=(8, 9), shared_bytes=101376) if self.portable else traits

    @property
    def attributes(self) -> dict[str, object]:
        return {"dt_softplus": self.softplus, "time_step_min": self.limits[0], "time_step_max": self.limits[1]}


def inputs_of(case: Case, seed: int = 0) -> list[torch.Tensor]:
    """x, A, B, C, D, dt, dt_bias, state, context_lengths; NaN at padding tokens."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    sizes = [case.heads * case.head_dim, case.groups * case.state_size, case.groups * case.state_size, case.heads]
    if case.gap:
        wide = normal(case.rows, case.time, sum(sizes) + case.gap).to(case.dtype)
        parts = list(wide[..., case.gap :].split(sizes, -1))
    else:
        parts = [normal(case.rows, case.time, size).to(case.dtype) for size in sizes]
    lengths = torch.tensor(case.lengths or [case.time] * case.rows, dtype=torch.int32, device="cuda")
    padding = torch.arange(case.time, device="cuda") >= lengths[:, None]
    for part in parts:
        part[padding] = NAN
    x, B, C, dt = parts
    A = -case.decay * torch.rand(case.heads, device="cuda", generator=generator)
    return [
        x.unflatten(-1, (case.heads, case.head_dim)),
        A,
        B.unflatten(-1, (case.groups, case.state_size)),
        C.unflatten(-1, (case.groups, case.state_size)),
        normal(case.heads).to(case.scalars),
        dt,
        (normal(case.heads) - 2).to(case.scalars),
        normal(case.rows, case.heads, case.head_dim, case.state_size).to(case.state),
        lengths,
    ]


def plan_of(
    case: Case,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[torch.Tensor],
    rows: PackedRows | None = None,
    gate: torch.Tensor | None = None,
) -> CallPlan:
    call = op_call("update_ssm_state", inputs, outputs, case.attributes, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_ssm_state_prefill_registers, "_LEAST_TIME", 1 if case.registers else 1 << 20)
        return plan_prefill(call, case.traits, None if gate is None else layout_of(gate))


def run(case: Case, inputs: list[torch.Tensor], in_place: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = list(inputs)
    y = torch.full(inputs[0].shape, NAN, dtype=case.dtype, device="cuda")
    state = inputs[7] = inputs[7].clone()
    state_out = state if in_place else torch.full_like(state, NAN)
    run_plan(plan_of(case, inputs, [y, state_out]), inputs, [y, state_out])
    return y, state_out


def reference(case: Case, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
    padding = torch.arange(case.time, device="cuda") >= inputs[8].long()[:, None]
    for index in (0, 2, 3, 5):
        wide[index] = wide[index].clone()
        wide[index][padding] = 0.0
    x, A, B, C, D, dt, bias, state, lengths = wide
    return update_ssm_state(x, A, B, C, D, dt, bias, state, lengths, case.softplus, *case.limits, chunk_size=64)


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm().clamp_min(1e-30))


def check(case: Case, in_place: bool = False) -> None:
    inputs = inputs_of(case)
    y, state = run(case, inputs, in_place)
    expected_y, expected_state = reference(case, inputs)
    y_error, state_error = error(y, expected_y), error(state, expected_state)
    assert y_error <= TOLERANCE[case.dtype], f"y: relative error {y_error:.3g}"
    limit = TOLERANCE[case.dtype] + STATE_TOLERANCE[case.state]
    assert state_error <= limit, f"state: relative error {state_error:.3g}"
    for row, length in enumerate(inputs[8].tolist()):
        assert bool((y[row, max(0, length) :] == 0).all()), "y at padding"
        if length <= 0:
            assert torch.equal(state[row], inputs[7][row]), "state of an empty row"


BASE = Case()
PORTABLE = replace(BASE, portable=True)
# Hopper's kernel and the two portable ones in 16 bits, the portable one in float.
BASES = [BASE, PORTABLE, replace(PORTABLE, registers=True), replace(BASE, dtype=F32)]
kernels = pytest.mark.parametrize("base", BASES, ids=str)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("base", BASES[:3], ids=str)
def test_types(dtype, narrow, in_place, base):
    types = {"state": dtype, "scalars": dtype} if narrow else {}
    check(replace(base, dtype=dtype, **types), in_place)


@kernels
@pytest.mark.parametrize("time", [1, 2, 16, 17, 63, 64, 65, 127, 128, 129, 500, 4096])
def test_lengths(time, base):
    check(replace(base, rows=1, time=time), in_place=True)


@kernels
@pytest.mark.parametrize(
    "sizes",
    [(8, 8), (16, 256), (24, 40), (64, 16), (64, 64), (72, 128), (80, 128), (96, 128), (128, 128), (64, 256),
     (128, 64), (256, 256), (248, 136)],
    ids=str,
)  # fmt: skip
def test_sizes(sizes, base):
    check(replace(base, head_dim=sizes[0], state_size=sizes[1]))


@pytest.mark.parametrize("time", [1, 31, 32, 33, 64, 500, 4096])
@pytest.mark.parametrize("sizes", [(16, 256), (72, 248), (64, 184)], ids=str)
def test_large_float_states_in_little_shared_memory(sizes, time):
    """In chunks of 32 tokens."""
    case = Case(time=time, heads=4, head_dim=sizes[0], state_size=sizes[1], dtype=F32, portable=True)
    check(replace(case, gap=3 if sizes[0] == 72 else 0), in_place=True)


@kernels
@pytest.mark.parametrize("heads, groups", [(1, 1), (5, 1), (5, 5), (48, 1), (128, 8)])
def test_groups(heads, groups, base):
    check(replace(base, heads=heads, groups=groups, rows=1))


@pytest.mark.parametrize(
    "change",
    [{"gap": 64}, {"gap": 10}, {"gap": 3}, {"softplus": 0, "limits": (0.001, 0.1)}, {"limits": (0.01, 0.02)},
     {"decay": 100.0}, {"decay": 0.01}],
    ids=str,
)  # fmt: skip
@kernels
def test_one_factor(change, base):
    check(replace(base, **change), in_place=True)


@kernels
@pytest.mark.parametrize("in_place", [False, True])
def test_ragged_rows(in_place, base):
    lengths = (0, 1, 2, 63, 64, 65, 127, 300, 511, -1)
    check(replace(base, rows=10, time=511, lengths=lengths), in_place)


@kernels
@pytest.mark.parametrize("in_place", [False, True])
def test_ragged_rows_in_segments(in_place, base):
    check(replace(base, rows=3, time=4096, heads=4, lengths=(4096, 65, 2000)), in_place)


@kernels
def test_strong_decay_next_to_almost_none(base):
    """The decay of late tokens of a chunk survives early ones whose logarithms are a thousand times larger."""
    case = replace(base, rows=1, time=256, softplus=0, decay=0.0)
    inputs = inputs_of(case)
    inputs[1] = torch.full_like(inputs[1], -16.0)
    step = torch.full_like(inputs[5], 0.002)
    step[:, :20] = 2.0
    step[:, 64:70] = 4.0
    inputs[5], inputs[6] = step, torch.zeros_like(inputs[6])
    y, state = run(case, inputs)
    expected_y, expected_state = reference(case, inputs)
    assert error(y, expected_y) <= TOLERANCE[case.dtype]
    assert error(state, expected_state) <= TOLERANCE[case.dtype]


@pytest.mark.parametrize("shift", [0, 2, 1])
@pytest.mark.parametrize("base", BASES[:3], ids=str)
@pytest.mark.parametrize("time", [200, 4096])
def test_gates(time, base, shift):
    """y is rounded and then multiplied by SiLU of a gate, whose tokens begin at `shift` elements."""
    case = replace(base, rows=1, time=time, heads=4)
    inputs = inputs_of(case)
    gate = torch.randn(1, time, 4 * 64 + 2 * shift, device="cuda").to(case.dtype)[..., shift : shift + 4 * 64]
    y, state = torch.full_like(inputs[0], NAN), torch.full_like(inputs[7], NAN)
    plan = plan_of(case, inputs, [y, state], gate=gate)
    pointer = {"gate": PointerSource(Memory.INPUT, len(inputs))}
    gated = tuple(replace(launch, pointers={**launch.pointers, **pointer}) for launch in plan.launches)
    run_plan(replace(plan, launches=gated), [*inputs, gate], [y, state])
    expected, expected_state = reference(case, inputs)
    expected = expected * torch.nn.functional.silu(gate.double()).unflatten(-1, (4, 64))
    assert error(y, expected) <= 1.5 * TOLERANCE[case.dtype]
    assert error(state, expected_state) <= TOLERANCE[case.dtype]


def packed_inputs(inputs: list[torch.Tensor], lengths: tuple[int, ...], slots: list[int], pool_size: int):
    packed: list[torch.Tensor | None] = list(inputs)
    for index in (0, 2, 3, 5):
        packed[index] = torch.cat([inputs[index][row, :length] for row, length in enumerate(lengths)])
    pool = torch.randn(pool_size, *inputs[7].shape[1:], device="cuda").to(inputs[7].dtype)
    for row, slot in enumerate(slots):
        if slot >= 0:
            pool[slot] = inputs[7][row]
    packed[7], packed[8] = pool, None
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
    return packed, starts, torch.tensor(slots, dtype=torch.int32, device="cuda")


def run_packed(case: Case, packed, starts, slots, state_out: torch.Tensor) -> torch.Tensor:
    y = torch.full(packed[0].shape, NAN, dtype=case.dtype, device="cuda")
    rows = PackedRows(len(slots), max(1, int(torch.diff(starts).max())))
    run_plan(plan_of(case, packed, [y, state_out], rows), packed, [y, state_out], (starts, slots))
    return y


@kernels
@pytest.mark.parametrize("in_place", [False, True])
def test_packed_rows_equal_dense_rows(in_place, base):
    lengths = (1, 0, 500, 3, 64)
    case = replace(base, rows=5, time=500, lengths=lengths)
    inputs = inputs_of(case)
    y, state = run(case, inputs)
    packed, starts, slots = packed_inputs(inputs, lengths, [4, 0, 7, 2, 5], 9)
    pool, before = packed[7], packed[7].clone()
    pool_out = pool if in_place else torch.full_like(pool, NAN)
    packed_y = run_packed(case, packed, starts, slots, pool_out)
    assert torch.equal(packed_y, torch.cat([y[row, :length] for row, length in enumerate(lengths)]))
    assert torch.equal(pool_out[slots.long()], state)
    others = [slot for slot in range(9) if slot not in slots.tolist()]
    untouched = before[others] if in_place else torch.full_like(before[others], NAN)
    assert torch.equal(pool_out[others].nan_to_num(9.0), untouched.nan_to_num(9.0))


@kernels
def test_padding_rows_are_skipped(base):
    lengths = (40, 70, 3, 64)
    case = replace(base, rows=4, time=70, lengths=lengths)
    inputs = inputs_of(case)
    expected_y, expected_state = run(case, inputs)
    packed, starts, slots = packed_inputs(inputs, lengths, [2, -1, 0, -1], 3)
    pool, before = packed[7], packed[7].clone()
    y = run_packed(case, packed, starts, slots, pool)
    for row, (begin, length) in enumerate(zip(starts.tolist(), lengths, strict=False)):
        part = y[begin : begin + length]
        assert torch.equal(part, expected_y[row, :length]) if slots[row] >= 0 else part.isnan().all()
    assert torch.equal(pool, torch.stack([expected_state[2], before[1], expected_state[0]]))


@pytest.mark.parametrize("cut", [1, 63, 64, 200])
def test_two_calls_equal_one_to_rounding(cut):
    case = replace(BASE, time=300, dtype=F32)
    inputs = inputs_of(case)
    y, state = run(case, inputs)
    parts, carried = [], inputs[7]
    for part in (slice(0, cut), slice(cut, None)):
        some = [t[:, part] if index in (0, 2, 3, 5) else t for index, t in enumerate(inputs)]
        some[7], some[8] = carried, torch.full_like(inputs[8], some[0].shape[1])
        part_y, carried = run(replace(case, time=some[0].shape[1]), some)
        parts.append(part_y)
    assert error(torch.cat(parts, 1), y.double()) <= TOLERANCE[F32]
    assert error(carried, state.double()) <= TOLERANCE[F32]


@kernels
@pytest.mark.parametrize("time", [200, 4096])
def test_results_are_the_same_from_run_to_run(base, time):
    case = replace(base, time=time, rows=1)
    inputs = inputs_of(case)
    first = run(case, inputs)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run(case, inputs), strict=True))
