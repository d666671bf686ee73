"""One-token kernels over states with rings on the GPU, step by step, against all tokens at once in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hybridge.trt_plugins.kernels.call import DeviceTraits, PackedRows
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.ops import ring_stream
from hybridge.trt_plugins.kernels.ops.ring import plan_ring
from hybridge.trt_plugins.specs.ring import RING
from tests.support.kernel_calls import layout_of, op_call, run_plan
from tests.support.ring_calls import STATE, RingCase, delta_case, ssm_case

pytestmark = pytest.mark.gpu

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ROWS, TOKENS = 3, 2 * RING + 3
# The smaller one of float32 data; a 16-bit state is rounded once a ring.
TOLERANCE = {F32: 1e-5, F16: 3e-3, BF16: 3e-3}
ROUNDED_STATE = 1e-2


def steps(
    case: RingCase, gate: torch.Tensor | None, traits: DeviceTraits, kernel: str
) -> tuple[list[list[torch.Tensor]], torch.Tensor]:
    """Outputs by row and token, and the flushed states; row r has slot 2 * r + 1 and starts r steps
    late, so that every row is in another place of its ring."""
    slots = 2 * ROWS + 1
    pool = torch.full((slots, *case.state.shape[1:]), math.nan, dtype=case.state.dtype, device="cuda")
    pool[1::2] = case.state
    ring, lengths = case.rings(slots), torch.zeros(slots, dtype=torch.int32, device="cuda")
    found: list[list[torch.Tensor]] = [[] for _ in range(ROWS)]
    for step in range(TOKENS + ROWS - 1):
        active = [row for row in range(ROWS) if 0 <= step - row < TOKENS]
        run(case, pool, ring, lengths, active, [step - row for row in active], found, gate, traits, kernel)
        for row in active:
            lengths[2 * row + 1] = (lengths[2 * row + 1] + 1) % RING
    written = pool.clone()
    run(case, pool, ring, lengths, [], [], found, gate, traits, kernel)
    for row in range(ROWS):
        assert torch.equal(pool[2 * row + 1], written[2 * row + 1]) == (int(lengths[2 * row + 1]) == 0)
    assert bool(pool[0::2].isnan().all())
    return found, pool[1::2]


def run(
    case: RingCase,
    pool: torch.Tensor,
    ring: list[torch.Tensor],
    lengths: torch.Tensor,
    active: list[int],
    at: list[int],
    found: list[list[torch.Tensor]],
    gate: torch.Tensor | None,
    traits: DeviceTraits,
    kernel: str,
) -> None:
    """A step of the ``active`` rows and a padding row; without active rows, one that flushes all rings."""
    rows = [*active, -1] if active else list(range(ROWS))
    indices = torch.tensor([2 * row + 1 if row >= 0 else -1 for row in rows], dtype=torch.int32, device="cuda")
    counts = [1] * len(active) + [0] * (len(rows) - len(active))
    bounds = torch.tensor([0, *counts], device="cuda").cumsum(0).to(torch.int32)
    inputs: list[torch.Tensor | None] = [*case.token(active or [0], at or [0])]
    inputs[STATE[case.name]] = pool
    data = inputs[0 if case.name == "update_ssm_state" else 2]
    assert data is not None
    y = torch.full_like(data, math.nan)
    call = op_call(case.name, [*inputs, None], [y, pool], case.attributes, PackedRows(len(rows), 1))
    extra = [] if gate is None else [gate[: len(y)].contiguous()]
    planned = plan_ring(call, traits, layout_of(extra[0]) if extra else None)
    assert planned.launches[0].source.entry == case.name + kernel
    run_plan(planned, [*inputs, None, *ring, lengths, *extra], [y, pool], (bounds, indices))
    for row, value in zip(active, y, strict=False):
        found[row].append(value)


def check(case: RingCase, gate: torch.Tensor | None = None, multiprocessors: int = 0) -> None:
    """multiprocessors: so few that a block visits several heads, by the kernel whose blocks stay; 0: the others."""
    traits = KernelDevice.current().traits
    found, states = steps(
        case,
        gate,
        replace(traits, multiprocessors=multiprocessors) if multiprocessors else traits,
        "_ring_stream" if multiprocessors else "_ring",
    )
    data = case.inputs[0].dtype
    rounded = case.state.dtype is not F32 and data is not F32
    for row in range(ROWS):
        y, state = case.expected(row, TOKENS)
        if gate is not None:
            y = y * torch.nn.functional.silu(gate[0].double()).view(y.shape[1:])
        outputs = torch.stack(found[row]).double()
        most = ROUNDED_STATE if rounded else TOLERANCE[data]
        assert float((outputs - y).norm() / y.norm()) <= most
        assert float((states[row].double() - state).norm() / state.norm()) <= most


SSM = [(4, 2, 64, 128), (8, 1, 64, 128), (2, 2, 80, 96), (3, 1, 24, 8), (2, 1, 256, 256), (2, 2, 72, 40)]
DELTA = [(4, 2, 128, 128), (2, 2, 64, 128), (2, 1, 96, 192), (2, 2, 40, 24), (2, 1, 256, 256), (2, 2, 8, 8)]


@pytest.mark.parametrize("shape", SSM, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_ssm_states(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    check(ssm_case(ROWS, TOKENS, *shape, dtype, "cuda"))


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("shape", DELTA, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_delta_states(shape: tuple[int, int, int, int], dtype: torch.dtype, channels: bool) -> None:
    check(delta_case(ROWS, TOKENS, *shape, dtype, "cuda", channels))


def test_keys_that_are_not_normalised():
    check(delta_case(ROWS, TOKENS, 4, 2, 128, 128, F32, "cuda", normed=False))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_states_of_16_bits(dtype):
    for case in (
        ssm_case(ROWS, TOKENS, 4, 2, 64, 128, dtype, "cuda"),
        delta_case(ROWS, TOKENS, 4, 2, 128, 128, dtype, "cuda"),
        delta_case(ROWS, TOKENS, 2, 2, 128, 128, dtype, "cuda", channels=True),
    ):
        case.state = case.state.to(dtype)
        check(case)


def test_gated_output():
    gate = torch.randn(1, 8 * 64, device="cuda").expand(ROWS, -1)
    check(ssm_case(ROWS, TOKENS, 8, 2, 64, 128, F32, "cuda"), gate)


@pytest.mark.parametrize("multiprocessors", [1, 2])
@pytest.mark.parametrize("shape", [(4, 2, 128, 128), (6, 6, 128, 128), (4, 1, 64, 128)], ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_delta_states_in_blocks_that_stay(
    shape: tuple[int, int, int, int], dtype: torch.dtype, multiprocessors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_stream, "LEAST_HEADS", 1)
    check(delta_case(ROWS, TOKENS, *shape, dtype, "cuda", normed=shape[2] == 128), multiprocessors=multiprocessors)
