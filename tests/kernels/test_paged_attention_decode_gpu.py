"""Rows of one new token of ``paged_attention`` on the GPU, against the float64 reference.

Outputs are full of NaN before, and so is every place of the pool that no token of a row sees. Pages are in random
order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from hybridge.trt_plugins.catalog import PACKED_OPS
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall, PackedRows
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.ops.paged_attention_call import PagedCall
from hybridge.trt_plugins.kernels.ops.paged_attention_decode import decode_launch
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


@dataclass(frozen=True)
class Case:
    """lengths: of each row, its new token included, 0 for a padding row; new: new tokens of each row.

    gap: elements between the tokens of the query, which is then a slice of a wider tensor. processors: multiprocessors
    that the launch is planned for, 0 for those that there are. spare: columns of the block table beyond the longest.
    parts: 1 where keys are the values too.
    """

    lengths: tuple[int, ...] = (200, 1, 0, 65, 1030)
    new: tuple[int, ...] | None = None
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
    spare: int = 3
    processors: int = 0
    one_token_rows: bool = False
    parts: int = 2

    def __str__(self) -> str:
        changed = [f"{k}={v}" for k, v in vars(self).items() if v != getattr(type(self), k)]
        return ",".join(changed) or "base"

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.new or (1,) * len(self.lengths)

    @property
    def traits(self) -> DeviceTraits:
        traits = KernelDevice.current().traits
        return replace(traits, multiprocessors=self.processors or traits.multiprocessors)

    @property
    def op(self) -> OpSpec:
        return PACKED_OPS["paged_attention_fp8" if self.fp8 else "paged_attention"]

    @property
    def attributes(self) -> dict[str, float]:
        return {"scale": self.scale, "sliding_window": self.sliding_window, "softcap": self.softcap}


def inputs_of(case: Case) -> list[torch.Tensor | None]:
    """query, kv_pool, block_table, query_start_loc, seq_lens, sinks."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    size, heads = case.block_size, case.kv_heads * case.group
    needed = [-(-length // size) for length in case.lengths]
    pages = torch.randperm(sum(needed) + 3, generator=generator).to(torch.int32)
    pool = torch.full((case.parts, len(pages), size, case.kv_heads, case.head_dim), NAN)
    table = torch.full((len(needed), max(needed) + case.spare), -1, dtype=torch.int32)
    for row, length in enumerate(case.lengths):
        table[row, : needed[row]] = pages[sum(needed[:row]) : sum(needed[: row + 1])]
        first = max(0, length - case.tokens[row] + 1 - case.sliding_window) if case.sliding_window else 0
        seen = torch.arange(first, length)
        pool[:, table[row, seen // size].long(), seen % size] = normal(
            case.parts, len(seen), case.kv_heads, case.head_dim
        )
    query = normal(sum(case.tokens), heads * case.head_dim + case.gap).to(case.dtype).cuda()
    query = query[:, : heads * case.head_dim].unflatten(-1, (heads, case.head_dim))
    starts = torch.tensor([0, *torch.tensor(case.tokens).cumsum(0)], dtype=torch.int32)
    lengths = torch.tensor(case.lengths, dtype=torch.int32)
    sinks = normal(heads).cuda() if case.sinks else None
    return [query, *pools_of(case, pool), table.cuda(), starts.cuda(), lengths.cuda(), sinks]


def pools_of(case: Case, pool: torch.Tensor) -> list[torch.Tensor]:
    """kv_pool in the case's type; or bytes of e4m3 and kv_scales, both NaN where ``pool`` is NaN."""
    if not case.fp8:
        return [pool.to(case.dtype).cuda()]
    numbers, scales = e4m3_from(pool)
    return [numbers.view(torch.uint8).cuda(), scales.transpose(2, 3).contiguous().cuda()]


def run(case: Case, inputs: list[torch.Tensor | None]) -> torch.Tensor:
    assert inputs[0] is not None
    y = torch.full(inputs[0].shape, NAN, dtype=case.dtype, device="cuda")
    spec = case.op
    layouts = tuple(None if tensor is None else layout_of(tensor) for tensor in inputs)
    packed = PackedRows(len(case.lengths), 1, False) if case.one_token_rows else None
    call = OpCall(spec, layouts, (layout_of(y),), spec.complete_attributes(case.attributes), packed)
    decode = decode_launch(PagedCall.of(call), case.traits)
    run_plan(CallPlan((decode.launch,), decode.workspace_bytes, counter_bytes=decode.counter_bytes), inputs, [y])
    return y


def reference(case: Case, inputs: list[torch.Tensor | None]) -> torch.Tensor:
    query, pool, *rest = inputs
    assert query is not None and pool is not None
    if case.fp8:
        return paged_attention_fp8(query.double(), pool, *rest, *case.attributes.values())  # type: ignore[arg-type]
    return paged_attention(query.double(), pool.double(), *rest, *case.attributes.values())  # type: ignore[arg-type]


def written(case: Case) -> torch.Tensor:
    """Which tokens the decode kernel computes: every one where no row is left to the prefill kernel."""
    every = sum(case.tokens) <= len(case.lengths)
    marks = [
        mark
        for length, new in zip(case.lengths, case.tokens, strict=True)
        for mark in [length > 0 and (every or new == 1)] * new
    ]
    return torch.tensor(marks, device="cuda")


def check(case: Case) -> torch.Tensor:
    inputs = inputs_of(case)
    y, expected, mine = run(case, inputs), reference(case, inputs), written(case)
    error = (y[mine].double() - expected[mine]).norm() / expected[mine].norm()
    assert error <= TOLERANCE[case.dtype], f"relative error {error:.3g}"
    assert y[~mine].isnan().all(), "tokens of other rows"
    return y


BASE = Case()


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("head_dim", [64, 72, 80, 96, 128, 192, 248, 256])
def test_head_dims_and_types(head_dim, dtype):
    check(replace(BASE, head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 4, 7, 8, 9, 16, 24])
def test_groups(group, head_dim):
    check(replace(BASE, group=group, head_dim=head_dim))


@pytest.mark.parametrize("fp8", [False, True])
def test_keys_that_are_values(fp8):
    check(replace(BASE, parts=1, fp8=fp8))


@pytest.mark.parametrize("block_size", [16, 32, 48, 64, 128])
def test_block_sizes(block_size):
    check(replace(BASE, block_size=block_size, lengths=(200, 1, 16, 17, 127, 128, 129, 513)))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 127, 500, 4096, 9999])
def test_lengths(length):
    check(replace(BASE, lengths=(length,)))


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 0.3},
        {"softcap": 5.0},
        {"softcap": 30.0, "dtype": F32},
        {"sinks": True},
        {"sinks": True, "softcap": 20.0, "sliding_window": 40},
        {"gap": 64},
        {"kv_heads": 1, "group": 8},
        {"kv_heads": 16, "group": 1},
        {"spare": 400},
        {"one_token_rows": True},
        {"dtype": F32, "sinks": True, "sliding_window": 33},
    ],
    ids=str,
)
def test_one_factor(change):
    check(replace(BASE, **change))


@pytest.mark.parametrize("window", [1, 15, 16, 17, 100, 4096])
def test_sliding_windows(window):
    check(replace(BASE, sliding_window=window, lengths=(1, 16, 17, 33, 500, 1030)))


@pytest.mark.parametrize("lengths", [(20, 1, 0, 128), (128,) * 40, (1,) * 700], ids=len)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_short_rows_take_a_block_for_each_head(lengths, dtype):
    check(replace(BASE, lengths=lengths, spare=0, dtype=dtype))


@pytest.mark.parametrize("processors", [1, 2, 5, 31, 600])
def test_any_share_of_the_work(processors):
    lengths = tuple(int(length) for length in torch.randint(0, 900, (37,), generator=torch.Generator().manual_seed(3)))
    check(replace(BASE, lengths=lengths, processors=processors))


def test_more_rows_than_blocks_share():
    check(replace(BASE, lengths=(150, 3, 0, 200) * 300))


@pytest.mark.parametrize("new", [(1, 7, 1, 30, 1), (2, 2, 1, 5, 9), (1, 1, 1, 1, 40)], ids=str)
def test_rows_of_several_tokens_are_left_out(new):
    check(replace(BASE, lengths=(200, 40, 1, 65, 1030), new=new))


@pytest.mark.parametrize("lengths", [(200, 40, 0, 0, 1030), (20, 9, 0, 0, 100)], ids=str)
def test_with_as_many_rows_as_tokens_every_token_is_a_row(lengths):
    check(replace(BASE, lengths=lengths, new=(1, 3, 0, 0, 1), sliding_window=30, spare=0))


def test_results_are_the_same_from_run_to_run():
    case = replace(BASE, lengths=(5000, 300, 1, 2222))
    inputs = inputs_of(case)
    first = run(case, inputs)
    for _ in range(5):
        assert torch.equal(run(case, inputs).nan_to_num(9.0), first.nan_to_num(9.0))


def test_a_launch_leaves_its_counters_for_the_next():
    case = replace(BASE, lengths=(5000, 300))
    inputs = inputs_of(case)
    query = inputs[0]
    assert query is not None
    y = torch.full(query.shape, NAN, dtype=case.dtype, device="cuda")
    spec = PACKED_OPS["paged_attention"]
    layouts = tuple(None if tensor is None else layout_of(tensor) for tensor in inputs)
    call = OpCall(spec, layouts, (layout_of(y),), spec.complete_attributes(case.attributes))
    decode = decode_launch(PagedCall.of(call), case.traits)
    bound = KernelDevice.current().bind(CallPlan((decode.launch,), counter_bytes=decode.counter_bytes))
    workspace = torch.full((decode.workspace_bytes // 4 + 64,), NAN, device="cuda")
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in inputs]
    for _ in range(3):
        y.fill_(NAN)
        place = (workspace.data_ptr() + 255) // 256 * 256
        bound.launch(torch.cuda.current_stream().cuda_stream, addresses, [y.data_ptr()], place)
    expected = reference(case, inputs)
    assert (y.double() - expected).norm() / expected.norm() <= TOLERANCE[case.dtype]


FP8 = replace(BASE, fp8=True)


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 192, 256])
def test_head_dims_of_e4m3(head_dim, dtype):
    check(replace(FP8, head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("group", [1, 3, 8, 9, 16, 24])
def test_groups_over_e4m3(group, head_dim):
    check(replace(FP8, group=group, head_dim=head_dim))


@pytest.mark.parametrize("block_size", [16, 32, 48, 64, 128])
def test_block_sizes_of_e4m3(block_size):
    check(replace(FP8, block_size=block_size, lengths=(200, 1, 16, 17, 127, 128, 129, 513)))


@pytest.mark.parametrize(
    "change",
    [
        {"softcap": 5.0},
        {"sinks": True, "softcap": 20.0, "sliding_window": 40, "dtype": F16},
        {"sliding_window": 17},
        {"gap": 64},
        {"lengths": (20, 1, 0, 128), "spare": 0},
        {"lengths": (9999,)},
        {"lengths": (1,)},
        {"lengths": (150, 3, 0, 200) * 300},
        {"processors": 5, "lengths": tuple(range(1, 900, 37))},
        {"lengths": (200, 40, 1, 65, 1030), "new": (1, 7, 1, 30, 1)},
    ],
    ids=str,
)
def test_one_factor_over_e4m3(change):
    check(replace(FP8, **change))


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("size", [2.0**-10, 256.0])
def test_small_and_large_values_of_e4m3(size, dtype):
    """Scales keep products inside of 16-bit types."""
    inputs = inputs_of(replace(FP8, dtype=dtype))
    query, scales = inputs[0], inputs[2]
    assert query is not None and scales is not None
    scales[1] *= size
    case = replace(FP8, dtype=dtype)
    y, expected, mine = run(case, inputs), reference(case, inputs), written(case)
    assert (y[mine].double() - expected[mine]).norm() / expected[mine].norm() <= TOLERANCE[dtype]
