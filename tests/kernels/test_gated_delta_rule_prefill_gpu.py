"""``gated_delta_rule`` over several tokens per row on the GPU, against float64, on outputs full of NaN."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from hybridge.trt_plugins.kernels.call import DeviceTraits, PackedRows
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.ops.gated_delta_rule import LONGEST_CHANNEL_WALK, LONGEST_WALK, plan
from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule
from tests.support.kernel_calls import op_call, run_plan

pytestmark = pytest.mark.gpu

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Relative norm against float64. float: sums in another order. 16 bits: operands of the products are rounded once each.
TOLERANCE = {F32: 1e-5, F16: 1e-3, BF16: 3e-3}
STATE_TOLERANCE = {F32: 0.0, F16: 1e-3, BF16: 3e-3}  # one rounding of the state on top
NAN = float("nan")
# GPUs before Hopper, with much and with little shared memory, and as many multiprocessors as the cuts of rows expect.
OLDER: dict[str, dict[str, Any]] = {
    "sm_80": {"capability": (8, 0), "shared_bytes": 166912, "multiprocessors": 132},
    "sm_89": {"capability": (8, 9), "shared_bytes": 101376, "multiprocessors": 132},
}


@dataclass(frozen=True)
class Case:
    """gap: elements between the tokens of q, k, v and beta, which are then slices of one wider tensor; g_gap: of g.

    decay_rate: the log of the decay lies between -decay_rate and 0. beta: its factor. alike: length of a vector that
    all keys and queries share. older: planned as for this GPU before Hopper.
    """

    rows: int = 2
    time: int = 200
    key_heads: int = 2
    value_heads: int = 4
    key_size: int = 128
    value_size: int = 128
    dtype: torch.dtype = BF16
    state: torch.dtype = F32
    decay: str = "head"
    norm: int = 1
    gap: int = 0
    g_gap: int = 0
    lengths: tuple[int, ...] | None = None
    decay_rate: float = 1.0
    beta: float = 1.0
    alike: float = 0.0
    older: str = ""

    def __str__(self) -> str:
        changed = [f"{k}={v}" for k, v in vars(self).items() if v != getattr(type(self), k)]
        return ",".join(changed) or "base"

    @property
    def traits(self) -> DeviceTraits:
        return replace(KernelDevice.current().traits, **OLDER.get(self.older, {}))

    @property
    def attributes(self) -> dict[str, object]:
        return {"decay": self.decay, "use_qk_l2norm": self.norm}


def inputs_of(case: Case, seed: int = 0) -> list[torch.Tensor]:
    """q, k, v, g, beta, state, context_lengths; NaN at padding tokens."""
    torch.manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda")

    keys = case.key_heads * case.key_size
    sizes = [keys, keys, case.value_heads * case.value_size, case.value_heads]
    lead = (case.rows, case.time)
    if case.gap:
        parts = list(normal(*lead, sum(sizes) + case.gap).to(case.dtype)[..., case.gap :].split(sizes, -1))
    else:
        parts = [normal(*lead, size).to(case.dtype) for size in sizes]
    shared = case.alike * normal(keys)
    for part in parts[:2]:
        part.copy_(part.float() + shared)
    if not case.norm:
        parts[1].copy_(parts[1].float() / case.key_size**0.5)
    parts[3].copy_(case.beta * torch.sigmoid(parts[3].float()))
    decays = case.key_size if case.decay == "key_channel" else 1
    g = -case.decay_rate * torch.rand(*lead, case.g_gap + case.value_heads * decays, device="cuda")
    g = g[..., case.g_gap :].unflatten(-1, (case.value_heads, decays))
    lengths = torch.tensor(case.lengths or [case.time] * case.rows, dtype=torch.int32, device="cuda")
    padding = torch.arange(case.time, device="cuda") >= lengths[:, None]
    for part in (*parts, g):
        part[padding] = NAN
    q, k = (part.unflatten(-1, (case.key_heads, case.key_size)) for part in parts[:2])
    v = parts[2].unflatten(-1, (case.value_heads, case.value_size))
    state = normal(case.rows, case.value_heads, case.key_size, case.value_size).to(case.state)
    return [q, k, v, g, parts[3], state, lengths]


def run(case: Case, inputs: list[torch.Tensor], in_place: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    o = torch.full(inputs[2].shape, NAN, dtype=case.dtype, device="cuda")
    state = inputs[5].clone()
    state_out = state if in_place else torch.full_like(state, NAN)
    inputs = [*inputs[:5], state, inputs[6]]
    call = op_call("gated_delta_rule", inputs, [o, state_out], case.attributes)
    run_plan(plan(call, case.traits), inputs, [o, state_out])
    return o, state_out


def reference(case: Case, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    wide = [tensor.double() for tensor in inputs[:6]]
    arguments: list[Any] = [*wide, inputs[6], case.decay, case.norm, 0.0, 64]
    return gated_delta_rule(*arguments)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm().clamp_min(1e-30))


def check(case: Case, in_place: bool = False) -> None:
    inputs = inputs_of(case)
    o, state = run(case, inputs, in_place)
    expected_o, expected_state = reference(case, inputs)
    o_error, state_error = relative(o, expected_o), relative(state, expected_state)
    assert o_error <= TOLERANCE[case.dtype], f"o: relative error {o_error:.3g}"
    limit = TOLERANCE[case.dtype] + STATE_TOLERANCE[case.state]
    assert state_error <= limit, f"state: relative error {state_error:.3g}"
    for row, length in enumerate(inputs[6].tolist()):
        assert bool((o[row, max(0, length) :] == 0).all()), "o at padding"
        if length <= 0:
            assert torch.equal(state[row], inputs[5][row]), "state of an empty row"


BASE = Case()
CHANNELS = replace(BASE, decay="key_channel")
# 16 bits on Hopper and before it, and float; the same with one decay per key channel.
BASES = [replace(base, **change) for base in (BASE, CHANNELS) for change in ({}, {"older": "sm_89"}, {"dtype": F32})]
BASES.append(replace(CHANNELS, older="sm_80"))
kernels = pytest.mark.parametrize("base", BASES, ids=str)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_types(dtype, narrow, in_place):
    check(replace(BASE, dtype=dtype, state=dtype if narrow else F32), in_place)


@kernels
@pytest.mark.parametrize("time", [2, 8, 9, 16, 17, 63, 64, 65, 127, 128, 129, 500, 4096])
def test_lengths(time, base):
    check(replace(base, rows=1, time=time), in_place=True)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("value_size", [16, 48, 96, 128, 192, 256])
@pytest.mark.parametrize("key_size", [16, 48, 64, 96, 128, 192, 256])
def test_sizes(key_size, value_size, dtype):
    check(replace(BASE, key_size=key_size, value_size=value_size, dtype=dtype, rows=1, time=150))


@kernels
@pytest.mark.parametrize(("key_heads", "value_heads"), [(1, 1), (1, 5), (3, 3), (2, 12), (16, 32)])
def test_heads(key_heads, value_heads, base):
    check(replace(base, key_heads=key_heads, value_heads=value_heads, rows=1))


@kernels
@pytest.mark.parametrize(
    "change",
    [{"gap": 64}, {"gap": 10}, {"gap": 3}, {"g_gap": 2}, {"g_gap": 3}, {"norm": 0}, {"beta": 2.0}, {"decay_rate": 0.0},
     {"decay_rate": 1e-3}, {"decay_rate": 100.0}, {"alike": 1.0}, {"alike": 1.0, "decay_rate": 1e-2},
     {"alike": 1.0, "beta": 2.0, "decay_rate": 1e-2}],
    ids=str,
)  # fmt: skip
def test_one_factor(change, base):
    check(replace(base, **change), in_place=True)


@pytest.mark.parametrize("decay", ["head", "key_channel"])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize(("key_size", "value_size"), [(8, 8), (24, 64), (64, 40), (248, 8)])
def test_sizes_that_products_do_not_divide(key_size, value_size, dtype, decay):
    check(replace(BASE, key_size=key_size, value_size=value_size, dtype=dtype, decay=decay, lengths=(200, 13)))


@pytest.mark.parametrize("time", [2, 8, LONGEST_CHANNEL_WALK, LONGEST_CHANNEL_WALK + 1, 70])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_decays_of_key_channels(dtype, time):
    check(replace(CHANNELS, dtype=dtype, time=time, rows=3, lengths=(time, 0, time // 2)))


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize(("key_size", "value_size"), [(16, 48), (48, 16), (64, 192), (96, 64), (192, 128), (256, 256)])
def test_sizes_with_decays_of_key_channels(key_size, value_size, dtype, narrow):
    sizes = {"key_size": key_size, "value_size": value_size, "state": dtype if narrow else F32}
    check(replace(CHANNELS, dtype=dtype, rows=1, time=150, **sizes))


@pytest.mark.parametrize(
    "change", [{}, {"rows": 40}, {"older": "sm_80"}, {"older": "sm_89"}, {"older": "sm_89", "rows": 40}], ids=str
)
@pytest.mark.parametrize("magnitude", [1e-2, 1e5])
def test_channel_states_may_have_any_size(magnitude, change):
    case = replace(CHANNELS, **change)
    inputs = inputs_of(case)
    inputs[2].mul_(magnitude)
    inputs[5].mul_(magnitude)
    o, state = run(case, inputs)
    expected_o, expected_state = reference(case, inputs)
    assert relative(o, expected_o) <= TOLERANCE[BF16]
    assert relative(state, expected_state) <= TOLERANCE[BF16]


@kernels
@pytest.mark.parametrize("in_place", [False, True])
def test_ragged_rows(in_place, base):
    lengths = (0, 1, 2, 63, 64, 65, 127, 300, 511, -1)
    check(replace(base, rows=10, time=511, lengths=lengths), in_place)


@pytest.mark.parametrize("sizes", [(128, 128), (64, 128), (128, 64), (64, 192)], ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("decay", ["head", "key_channel"])
def test_more_heads_than_multiprocessors(decay, dtype, sizes):
    """Blocks of two warpgroups where columns allow, at ragged lengths."""
    key_size, value_size = sizes
    lengths = (200, 64, 0, 1, 129, 200, 63, 192, 17)
    heads = {"key_heads": 8, "value_heads": 16, "key_size": key_size, "value_size": value_size}
    check(Case(rows=9, dtype=dtype, decay=decay, lengths=lengths, **heads), in_place=True)


@pytest.mark.parametrize("rows", [1, 4, 9])
@pytest.mark.parametrize("key_size", [128, 48])
@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("decay", ["head", "key_channel"])
def test_cuts_of_heads_before_hopper(decay, dtype, key_size, rows):
    """Blocks of two, four and eight warps with columns of the state, at ragged lengths."""
    lengths = (129, 200, 64, 0, 1, 200, 63, 192, 17)[:rows]
    heads = {"key_heads": 8, "value_heads": 16, "key_size": key_size, "decay": decay}
    check(Case(rows=rows, dtype=dtype, lengths=lengths, older="sm_80", **heads), in_place=True)


@kernels
def test_strong_decay_next_to_almost_none(base):
    """The decay of late tokens of a chunk survives early ones whose logarithms are ten thousand times larger."""
    case = replace(base, rows=1, time=256)
    inputs = inputs_of(case)
    inputs[3].fill_(-0.02)
    inputs[3][:, :20] = -200.0
    inputs[3][:, 64:70] = -1e5
    o, state = run(case, inputs)
    expected_o, expected_state = reference(case, inputs)
    assert relative(o, expected_o) <= TOLERANCE[case.dtype]
    assert relative(state, expected_state) <= TOLERANCE[case.dtype]


def packed_inputs(inputs: list[torch.Tensor], lengths: tuple[int, ...], slots: list[int], pool_size: int):
    packed: list[torch.Tensor | None] = [
        torch.cat([tensor[row, :length] for row, length in enumerate(lengths)]) for tensor in inputs[:5]
    ]
    pool = torch.randn(pool_size, *inputs[5].shape[1:], device="cuda").to(inputs[5].dtype)
    for row, slot in enumerate(slots):
        if slot >= 0:
            pool[slot] = inputs[5][row]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device="cuda")
    return [*packed, pool, None], starts, torch.tensor(slots, dtype=torch.int32, device="cuda")


def run_packed(case: Case, packed, starts, slots, state_out: torch.Tensor) -> torch.Tensor:
    o = torch.full(packed[2].shape, NAN, dtype=case.dtype, device="cuda")
    rows = PackedRows(len(slots), max(1, int(torch.diff(starts).max())))
    call = op_call("gated_delta_rule", packed, [o, state_out], case.attributes, rows)
    run_plan(plan(call, case.traits), packed, [o, state_out], (starts, slots))
    return o


@kernels
@pytest.mark.parametrize("in_place", [False, True])
def test_packed_rows_equal_dense_rows(in_place, base):
    lengths = (1, 0, 300, 3, 64)
    case = replace(base, rows=5, time=300, lengths=lengths)
    inputs = inputs_of(case)
    dense_o, dense_state = run(case, inputs)
    packed, starts, slots = packed_inputs(inputs, lengths, [4, 0, 6, 2, 5], 8)
    before = packed[5].clone()
    state_out = packed[5] if in_place else torch.full_like(packed[5], NAN)
    o = run_packed(case, packed, starts, slots, state_out)
    assert torch.equal(o, torch.cat([dense_o[row, :length] for row, length in enumerate(lengths)]))
    assert torch.equal(state_out[slots.long()], dense_state)
    if in_place:
        assert torch.equal(state_out[[1, 3, 7]], before[[1, 3, 7]])
    else:
        assert bool(state_out[[1, 3, 7]].isnan().all())


@kernels
def test_padding_rows_are_skipped(base):
    lengths = (65, 40, 12)
    case = replace(base, rows=3, time=65, lengths=lengths)
    inputs = inputs_of(case)
    dense_o, dense_state = run(case, inputs)
    packed, starts, slots = packed_inputs(inputs, lengths, [2, -1, 0], 4)
    before = packed[5].clone()
    o = run_packed(case, packed, starts, slots, packed[5])
    assert bool(o[65:105].isnan().all())
    assert torch.equal(o[:65], dense_o[0])
    assert torch.equal(o[105:], dense_o[2, :12])
    assert torch.equal(packed[5][[2, 0]], dense_state[[0, 2]])
    assert torch.equal(packed[5][[1, 3]], before[[1, 3]])


@pytest.mark.parametrize("base", [BASE, CHANNELS], ids=["head", "key_channel"])
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_the_error_does_not_grow_with_length(dtype, base):
    """16,384 tokens with decays close to 1; the last 4,096 outputs and the state.

    bfloat16 outputs come to 3.1e-3, half of it their own rounding (docs/explanation/kernels/gated_delta_rule.md).
    """
    case = replace(base, rows=1, time=16384, key_heads=1, value_heads=2, dtype=dtype, decay_rate=1e-3)
    inputs = inputs_of(case)
    o, state = run(case, inputs)
    expected_o, expected_state = reference(case, inputs)
    limit = TOLERANCE[dtype] * (1.1 if dtype is BF16 else 1.0)
    assert relative(o[:, -4096:], expected_o[:, -4096:]) <= limit
    assert relative(state, expected_state) <= TOLERANCE[dtype]


@kernels
def test_walked_and_chunked_rows_agree(base):
    """The longest row that is walked token by token, continued in chunks, is one long row."""
    case = replace(base, rows=1, time=LONGEST_WALK + 100)
    inputs = inputs_of(case)
    first = [tensor[:, :LONGEST_WALK] for tensor in inputs[:5]]
    rest = [tensor[:, LONGEST_WALK:] for tensor in inputs[:5]]
    count = torch.full_like(inputs[6], LONGEST_WALK)
    o_first, state = run(case, [*first, inputs[5], count])
    o_rest, state = run(case, [*rest, state, inputs[6] - LONGEST_WALK])
    expected_o, expected_state = reference(case, inputs)
    assert relative(torch.cat([o_first, o_rest], 1), expected_o) <= TOLERANCE[case.dtype]
    assert relative(state, expected_state) <= TOLERANCE[case.dtype]


@kernels
def test_results_are_the_same_from_run_to_run(base):
    case = replace(base, rows=4, time=700, key_heads=4, value_heads=8)
    inputs = inputs_of(case)
    first = run(case, inputs, in_place=True)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run(case, inputs, in_place=True), strict=True))
