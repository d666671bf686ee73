"""Rows of several new tokens of ``paged_attention`` on the GPU, against the float64 reference.

Outputs are full of NaN before, and so is every place of the pool that no token of a row sees; pages are in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from hybridge.trt_plugins.catalog import PACKED_OPS
from hybridge.trt_plugins.kernels.call import DeviceTraits, OpCall
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.ops import paged_attention_prefill
from hybridge.trt_plugins.kernels.ops.paged_attention_call import PagedCall
from hybridge.trt_plugins.kernels.ops.paged_attention_prefill import plan_prefill
from hybridge.trt_plugins.reference.e4m3 import e4m3_from
from hybridge.trt_plugins.reference.paged_attention import paged_attention, paged_attention_fp8
from hybridge.trt_plugins.spec import OpSpec
from tests.support.kernel_calls import layout_of, run_plan

pytestmark = pytest.mark.gpu

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Relative norm against float64. float: sums in another order, products of split operands. 16 bits: weights and outputs
# are rounded once each.
TOLERANCE = {F32: 1e-5, F16: 3e-3, BF16: 3e-3}
NAN = float("nan")
PADDING = -1


@dataclass(frozen=True)
class Case:
    """new: tokens of each row; past: those that its cache holds, PADDING for a padding row.

    gap: elements between the tokens of the query, which is then a slice of a wider tensor, as in one projection of
    queries, keys and values. portable: planned as for a GPU without Hopper's instructions, and few: which has a
    multiprocessor for each tile. long: the block table has columns for 1,024 tokens at least.
    """

    new: tuple[int, ...] = (150, 1, 2, 70)
    past: tuple[int, ...] = (0, 40, 90, 33)
    kv_heads: int = 2
    group: int = 4
    head_dim: int = 128
    block_size: int = 16
    dtype: torch.dtype = BF16
    scale: float = 0.0
    sliding_window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    fp8: bool = False
    gap: int = 0
    portable: bool = False
    few: bool = False
    large: bool = False
    long: bool = False

    def __str__(self) -> str:
        changed = [f"{k}={v}" for k, v in vars(self).items() if v != getattr(type(self), k)]
        return ",".join(changed) or "base"

    @property
    def traits(self) -> DeviceTraits:
        traits = KernelDevice.current().traits
        if not self.portable:
            return traits
        count = traits.multiprocessors if self.few else 1
        shared = 166912 if self.large else 101376
        return replace(traits, capability=(8, 9), multiprocessors=count, shared_bytes=shared)

    @property
    def op(self) -> OpSpec:
        return PACKED_OPS["paged_attention_fp8" if self.fp8 else "paged_attention"]

    @property
    def attributes(self) -> dict[str, float]:
        return {"scale": self.scale, "sliding_window": self.sliding_window, "softcap": self.softcap}

    @property
    def totals(self) -> list[int]:
        return [0 if past == PADDING else new + past for new, past in zip(self.new, self.past, strict=True)]


def inputs_of(case: Case, seed: int = 0) -> list[torch.Tensor | None]:
    """query, kv_pool, block_table, query_start_loc, seq_lens, sinks."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    size, totals = case.block_size, case.totals
    needed = [-(-total // size) for total in totals]
    pages = torch.randperm(sum(needed) + 3, generator=generator)
    pool = torch.full((2, len(pages), size, case.kv_heads, case.head_dim), NAN)
    columns = max(max(needed) + 2, -(-1024 // size) if case.long else 0)
    table = torch.full((len(totals), columns), -1, dtype=torch.int32)
    used = 0
    for row, (total, past, count) in enumerate(zip(totals, case.past, needed, strict=True)):
        own, used = pages[used : used + count], used + count
        seen = max(0, past - case.sliding_window + 1) if case.sliding_window else 0
        positions = torch.arange(seen, total)
        places = own[positions // size], positions % size
        pool[:, places[0], places[1]] = normal(2, len(positions), case.kv_heads, case.head_dim)
        table[row, : len(own)] = own.int()
        table[row, : seen // size] = -1
    heads = case.kv_heads * case.group
    query = normal(sum(case.new), heads * case.head_dim + case.gap)[:, case.gap :].to(case.dtype)
    bounds = torch.tensor([0, *torch.tensor(case.new).cumsum(0)], dtype=torch.int32)
    lengths = torch.tensor(totals, dtype=torch.int32)
    wide = on_gpu(torch.nn.functional.pad(query, (case.gap, 0)))[:, case.gap :].unflatten(1, (heads, case.head_dim))
    sinks = on_gpu(normal(heads) + 2.0) if case.sinks else None
    return [wide, *pools_of(case, pool), on_gpu(table), on_gpu(bounds), on_gpu(lengths), sinks]


def pools_of(case: Case, pool: torch.Tensor) -> list[torch.Tensor]:
    """kv_pool in the case's type; or bytes of e4m3 and kv_scales, both NaN where ``pool`` is NaN."""
    if not case.fp8:
        return [on_gpu(pool.to(case.dtype))]
    numbers, scales = e4m3_from(pool)
    return [on_gpu(numbers.view(torch.uint8)), on_gpu(scales.transpose(2, 3).contiguous())]


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda").copy_(tensor)


def run(case: Case, inputs: list[torch.Tensor | None]) -> torch.Tensor:
    query = inputs[0]
    assert query is not None
    y = torch.full(query.shape, NAN, dtype=case.dtype, device="cuda")
    op = case.op
    layouts = tuple(None if tensor is None else layout_of(tensor) for tensor in inputs)
    call = OpCall(op, layouts, (layout_of(y),), op.complete_attributes(case.attributes))
    run_plan(plan_prefill(PagedCall.of(call), case.traits), inputs, [y])
    return y


def reference(case: Case, inputs: list[torch.Tensor | None]) -> torch.Tensor:
    query, pool, *rest, sinks = inputs
    assert query is not None and pool is not None
    wide = None if sinks is None else sinks.double()
    attributes = (case.scale, case.sliding_window, case.softcap)
    if case.fp8:
        return paged_attention_fp8(query.double(), pool, *rest, wide, *attributes)  # type: ignore[arg-type, call-arg]
    return paged_attention(query.double(), pool.double(), *rest, wide, *attributes)  # type: ignore[arg-type, call-arg]


def check(case: Case) -> None:
    inputs = inputs_of(case)
    compare(case, run(case, inputs), reference(case, inputs))


def compare(case: Case, y: torch.Tensor, expected: torch.Tensor) -> None:
    begin = 0
    for new, past in zip(case.new, case.past, strict=True):
        found, wanted = y[begin : begin + new], expected[begin : begin + new]
        begin += new
        if new <= 1 or past == PADDING:
            assert bool(found.isnan().all()), "a row of the other kernel, or without an owner, was written"
            continue
        error = float((found.double() - wanted).norm() / wanted.norm())
        assert error <= TOLERANCE[case.dtype], f"row of {new} after {past}: relative error {error:.3g}"


BASE = Case()
LONG, PORTABLE = replace(BASE, long=True), replace(BASE, portable=True)
# Hopper's products where the GPU has them, warp-level products in tiles of all kinds, and float.
BASES = [BASE, LONG, PORTABLE, replace(PORTABLE, few=True), replace(PORTABLE, large=True), replace(BASE, dtype=F32)]
kernels = pytest.mark.parametrize("base", BASES, ids=str)


@pytest.mark.parametrize("base", [BASE, LONG, PORTABLE], ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_types(dtype, base):
    check(replace(base, dtype=dtype))


@kernels
@pytest.mark.parametrize("length", [2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 500, 4096])
def test_lengths(length, base):
    check(replace(base, new=(length,), past=(0,), kv_heads=1))


@kernels
@pytest.mark.parametrize("past", [1, 15, 16, 127, 128, 300, 1999])
def test_chunks_resume_on_a_filled_cache(past, base):
    check(replace(base, new=(67, 2), past=(past, past + 5)))


@kernels
@pytest.mark.parametrize("group", [1, 3, 4, 7, 8, 16])
def test_groups(group, base):
    check(replace(base, group=group))


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("base", [BASE, LONG, PORTABLE], ids=str)
@pytest.mark.parametrize("head_dim", [64, 72, 80, 96, 104, 128, 136, 192, 200, 256])
def test_head_dims(head_dim, base, dtype):
    check(replace(base, head_dim=head_dim, dtype=dtype))


@kernels
@pytest.mark.parametrize("block_size", [16, 32, 48, 64, 112, 128])
def test_block_sizes(block_size, base):
    check(replace(base, block_size=block_size))


@kernels
@pytest.mark.parametrize(
    "change",
    [{"sliding_window": 1}, {"sliding_window": 33}, {"sliding_window": 100, "past": (500, 40, 90, 33)},
     {"sliding_window": 128}, {"softcap": 20.0}, {"softcap": 2.0, "scale": 0.3}, {"sinks": True}, {"scale": 0.02},
     {"scale": 1.0}, {"gap": 64}, {"gap": 8},
     {"sliding_window": 70, "softcap": 5.0, "sinks": True, "group": 3, "block_size": 48}],
    ids=str,
)  # fmt: skip
def test_one_factor(change, base):
    check(replace(base, **change))


@pytest.mark.parametrize("case", [BASE, LONG, replace(BASE, fp8=True)], ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 192])
def test_keys_that_are_found_by_heads(head_dim, case, monkeypatch):
    """As in a pool that 31 bits of 16 bytes do not reach through."""
    monkeypatch.setattr(paged_attention_prefill, "_is_wide", lambda paged: True)
    check(replace(case, head_dim=head_dim))


@kernels
def test_heads_before_slots_in_a_wider_pool(base):
    inputs = inputs_of(base)
    pool = inputs[1]
    assert pool is not None
    wide = torch.full((*pool.shape[:2], pool.shape[3], pool.shape[2] + 1, pool.shape[4] + 8), NAN, device="cuda")
    strided = wide.to(pool.dtype)[..., :-1, :-8].transpose(2, 3)
    strided.copy_(pool)
    compare(base, run(base, [inputs[0], strided, *inputs[2:]]), reference(base, inputs))


@kernels
def test_blocks_that_no_token_of_a_row_sees_are_not_read(base):
    case = replace(base, new=(150, 2), past=(0, 400))
    query, pool, table, *rest = inputs_of(case)
    assert table is not None
    other = torch.where(table < 0, 2**30, table)
    compare(case, run(case, [query, pool, other, *rest]), reference(case, [query, pool, table, *rest]))


@pytest.mark.parametrize("case", [BASE, LONG, PORTABLE], ids=str)
def test_keys_beyond_32_gib(case):
    """The case's pages are the last ones of a pool whose keys take 33 GiB."""
    query, pool, table, *rest = inputs_of(case)
    assert pool is not None and table is not None
    more = (33 << 30) // (pool[0, 0].numel() * pool.element_size())
    if torch.cuda.mem_get_info()[0] < 70 << 30:
        pytest.skip("needs 70 GiB of free GPU memory")
    large = torch.empty((2, more + pool.shape[1], *pool.shape[2:]), dtype=pool.dtype, device="cuda")
    large[:, more:] = pool
    y = run(case, [query, large, torch.where(table < 0, table, table + more), *rest])
    compare(case, y, reference(case, [query, pool, table, *rest]))


@kernels
def test_rows_of_one_token_and_padding_rows_are_left_alone(base):
    new, past = (1, 300, 1, 0, 40, 1, 5, 129), (900, 0, 0, 12, PADDING, PADDING, 60, 7)
    check(replace(base, new=new, past=past))


@kernels
def test_nothing_is_written_where_no_row_has_two_tokens(base):
    check(replace(base, new=(1, 0, 1), past=(10, 3, 0)))


@kernels
def test_more_rows_than_a_warp_has_lanes(base):
    new = tuple(1 + 7 * row % 23 for row in range(75))
    check(replace(base, new=new, past=tuple(11 * row % 60 for row in range(75)), kv_heads=1))


@kernels
def test_more_tiles_than_a_multiprocessor_holds_at_once(base):
    """Blocks of the persistent kernel work on several tiles each, of rows that differ in weight."""
    check(replace(base, new=(900, 3, 1700, 250), past=(0, 2000, 100, 1), kv_heads=4, group=8, head_dim=64))


@kernels
def test_results_are_the_same_from_run_to_run(base):
    case = replace(base, new=(700, 300, 5), past=(0, 500, 60), kv_heads=4)
    inputs = inputs_of(case)
    first = run(case, inputs)
    for _ in range(3):
        assert torch.equal(first, run(case, inputs))


@kernels
def test_a_row_does_not_depend_on_its_neighbours(base):
    case = replace(base, new=(150, 70), past=(20, 400))
    inputs = inputs_of(case)
    query, pool, table, _, lengths, sinks = inputs
    assert query is not None and table is not None and lengths is not None
    together = run(case, inputs)
    alone = replace(case, new=(70,), past=(400,))
    bounds = torch.tensor([0, 70], dtype=torch.int32, device="cuda")
    assert torch.equal(together[150:], run(alone, [query[150:], pool, table[1:], bounds, lengths[1:], sinks]))


FP8 = [replace(BASE, fp8=True), *(replace(BASE, fp8=True, portable=True, few=few) for few in (False, True))]
over_e4m3 = pytest.mark.parametrize("base", FP8, ids=str)


@over_e4m3
@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 192, 256])
def test_head_dims_of_e4m3(head_dim, dtype, base):
    check(replace(base, head_dim=head_dim, dtype=dtype))


@over_e4m3
@pytest.mark.parametrize("block_size", [16, 48, 128])
def test_block_sizes_of_e4m3(block_size, base):
    check(replace(base, block_size=block_size))


@over_e4m3
@pytest.mark.parametrize(
    "change",
    [{"sliding_window": 33}, {"softcap": 20.0}, {"sinks": True}, {"gap": 8}, {"group": 7},
     {"new": (4096,), "past": (0,), "kv_heads": 1}, {"new": (67, 2), "past": (1999, 300)},
     {"new": (1, 300, 1, 0, 40, 1, 5, 129), "past": (900, 0, 0, 12, PADDING, PADDING, 60, 7)},
     {"sliding_window": 70, "softcap": 5.0, "sinks": True, "group": 3, "block_size": 48, "dtype": F16}],
    ids=str,
)  # fmt: skip
def test_one_factor_over_e4m3(change, base):
    check(replace(base, **change))


CONVERTED = replace(BASE, fp8=True, new=(300, 1, 2, 700, 129), past=(100, 40, 90, 1033, 5))
several_kinds = pytest.mark.parametrize(
    "change",
    [{}, {"sliding_window": 70}, {"sliding_window": 200, "softcap": 5.0, "sinks": True, "group": 3, "block_size": 48},
     {"head_dim": 256, "sliding_window": 33}, {"head_dim": 80, "dtype": F16}, {"group": 16, "kv_heads": 1},
     {"new": tuple(1 + 37 * row % 83 for row in range(75)), "past": tuple(29 * row % 400 for row in range(75))}],
    ids=str,
)  # fmt: skip


@several_kinds
@pytest.mark.parametrize("bytes_", [256 << 20, 2 << 20, 0])
def test_keys_that_are_converted_before_give_the_same(bytes_, change, monkeypatch):
    """For all rows, for those that the memory holds, and for none."""
    case = replace(CONVERTED, **change)
    inputs = inputs_of(case)
    monkeypatch.setattr(paged_attention_prefill, "_MOST_CONVERTED", bytes_)
    y = run(case, inputs)
    compare(case, y, reference(case, inputs))
    monkeypatch.setattr(paged_attention_prefill, "_MOST_CONVERTED", 0)
    assert torch.equal(y.view(torch.int16), run(case, inputs).view(torch.int16))


@several_kinds
@pytest.mark.parametrize("bytes_", [64 << 20, 2 << 20])
@pytest.mark.parametrize("traits", [{}, {"few": True}, {"large": True}], ids=str)
def test_keys_that_become_a_pool_of_16_bits(traits, bytes_, change, monkeypatch):
    """For all rows of several tiles, and for those that the memory holds."""
    case = replace(CONVERTED, portable=True, **traits, **change)
    inputs = inputs_of(case)
    monkeypatch.setattr(paged_attention_prefill, "_MOST_POOL", bytes_)
    compare(case, run(case, inputs), reference(case, inputs))


@pytest.mark.parametrize("bytes_", [256 << 20, 0])
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_scales_of_any_size(dtype, bytes_, monkeypatch):
    """Numbers that become subnormal or zero in 16 bits, and values near the largest of float16."""
    monkeypatch.setattr(paged_attention_prefill, "_MOST_CONVERTED", bytes_)
    case = replace(CONVERTED, dtype=dtype)
    query, pool, scales, *rest = inputs_of(case)
    assert scales is not None
    powers = torch.randint(-26, 8, scales.shape[1:], device="cuda").float().exp2()
    scales[0] *= powers.clamp(max=4.0)
    scales[1] *= powers
    compare(case, run(case, [query, pool, scales, *rest]), reference(case, [query, pool, scales, *rest]))
