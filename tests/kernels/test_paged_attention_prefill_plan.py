"""The launch for rows of several new tokens of ``paged_attention``; needs no GPU."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.catalog import PACKED_OPS
from hybridge.trt_plugins.kernels.architectures import CHECKED
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, OpCall
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.paged_attention_call import PagedCall
from hybridge.trt_plugins.kernels.ops.paged_attention_prefill import (
    CONVERT_FILE,
    MMA_FILE,
    WGMMA_FILE,
    plan_prefill,
    prefill_sources,
)
from hybridge.trt_plugins.plugins.targets import traits_from_capability
from tests.support.kernel_calls import H200, ORIN, capability_from_architecture

SPEC = PACKED_OPS["paged_attention"]
BF16, F16, F32, I32 = DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.INT32
ADA = replace(ORIN, capability=(8, 9), shared_bytes=101376)


def call_of(
    rows: int = 8,
    tokens: int = 600,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    dtype: DType = BF16,
    pool_blocks: int = 1000,
    sinks: bool = False,
    gap: int = 0,
    max_blocks: int = 512,
    **attributes: float,
) -> PagedCall:
    query = TensorLayout.contiguous(dtype, (tokens, heads, head_dim))
    wide = replace(query, strides=(heads * head_dim + gap, head_dim, 1))
    inputs = (
        wide,
        TensorLayout.contiguous(dtype, (2, pool_blocks, 16, kv_heads, head_dim)),
        TensorLayout.contiguous(I32, (rows, max_blocks)),
        TensorLayout.contiguous(I32, (rows + 1,)),
        TensorLayout.contiguous(I32, (rows,)),
        TensorLayout.contiguous(F32, (heads,)) if sinks else None,
    )
    return PagedCall.of(OpCall(SPEC, inputs, (query,), SPEC.complete_attributes(attributes)))


def planned(device: DeviceTraits = H200, **changes: object) -> KernelLaunch:
    (launch,) = plan_prefill(call_of(**changes), device).launches  # type: ignore[arg-type]
    return launch


def test_hopper_runs_16_bit_data_on_warpgroup_products_and_float_on_its_own():
    assert planned().source.file == WGMMA_FILE
    assert planned(dtype=F16, head_dim=72).source.file == WGMMA_FILE
    assert planned(dtype=F32).source.file == MMA_FILE
    assert planned(ORIN).source.file == MMA_FILE


def test_persistent_blocks_are_at_most_the_multiprocessors():
    assert planned().grid == (H200.multiprocessors, 1, 1)
    assert planned(rows=1, tokens=2).grid == (8, 1, 1)


@pytest.mark.parametrize("lengths", [(600,), (2, 598), (2, 2, 2, 2), (33, 1, 95, 127, 129), (32,) * 7, (31,) * 7])
@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 8), (6, 2), (7, 1), (4, 4)])
def test_the_grid_holds_a_tile_for_all_queries_of_any_rows(lengths, heads, kv_heads):
    """Each row's queries of a KV head take whole tiles of 128; there is a block for each of these."""
    group = heads // kv_heads
    needed = sum(-(-length * group // 128) for length in lengths) * kv_heads
    launch = planned(ORIN, rows=len(lengths), tokens=sum(lengths), heads=heads, kv_heads=kv_heads, head_dim=64)
    assert dict(launch.source.defines)["TILE_ROWS"] == "128"
    assert needed <= launch.grid[0] <= needed + len(lengths) * kv_heads


@pytest.mark.parametrize("architecture", CHECKED)
def test_every_type_and_head_dim_fits_every_gpu(architecture):
    device = traits_from_capability(capability_from_architecture(architecture))[0]
    for dtype, head_dim in itertools.product((BF16, F16, F32), range(64, 257, 8)):
        launch = planned(device, dtype=dtype, head_dim=head_dim)
        assert launch.shared_bytes <= device.shared_bytes, (dtype, head_dim)
        assert launch.overlap == (device.capability >= (9, 0))


@pytest.mark.parametrize(
    ("rows", "tokens", "head_dim", "shared_bytes", "tile"),
    [(1, 512, 128, 101376, (128, 64, 4, 2)), (1, 544, 128, 101376, (256, 64, 8, 1)),
     (9, 544, 128, 101376, (128, 32, 4, 1)), (9, 544, 128, 166912, (128, 64, 4, 1)),
     (1, 512, 64, 101376, (128, 64, 4, 1)), (1, 512, 192, 101376, (64, 32, 4, 1))],
)  # fmt: skip
def test_tiles_fit_the_work_and_the_memory(rows: int, tokens: int, head_dim: int, shared_bytes: int, tile: tuple):
    """128 multiprocessors; 8 KV heads, and 16 or 17 tiles of 128 queries for each, of 4 query heads at every token."""
    device = replace(ADA, multiprocessors=128, shared_bytes=shared_bytes)
    launch = planned(device, rows=rows, tokens=tokens, head_dim=head_dim)
    defines = dict(launch.source.defines)
    assert tuple(int(defines[name]) for name in ("TILE_ROWS", "TILE_KEYS", "WARPS", "TEAMS")) == tile
    assert launch.block == (32 * tile[2] * tile[3], 1, 1) and launch.shared_bytes <= shared_bytes
    assert launch.source in set(prefill_sources())


def test_strides_and_attributes_reach_the_kernel():
    params = planned(gap=64, sliding_window=7, softcap=30.0, scale=0.5).params.call
    assert (params.query_token, params.query_head) == (32 * 128 + 64, 128)
    assert (params.pool_block, params.pool_slot, params.pool_head) == (16 * 8 * 128, 8 * 128, 128)
    assert (params.rows, params.group, params.block_size, params.max_blocks) == (8, 4, 16, 512)
    assert (params.sliding_window, params.softcap, params.scale) == (7, 30.0, 0.5)
    assert planned().params.call.scale == planned(ORIN).params.scale == pytest.approx(128**-0.5)


def test_boxes_of_keys_are_copied_where_rows_may_be_long():
    short, long = (plan_prefill(call_of(max_blocks=count), H200) for count in (63, 64))
    boxes = [dict(plan.launches[0].source.defines)["BOXES"] for plan in (short, long)]
    assert boxes == ["0", "1"] and "maps" not in short.launches[0].pointers and short.workspace_bytes == 0
    assert long.launches[0].pointers["maps"].memory is Memory.WORKSPACE
    assert long.workspace_bytes == 2 * 128 * H200.multiprocessors
    assert {plan.launches[0].source for plan in (short, long)} <= set(prefill_sources())


@pytest.mark.parametrize("stride", [0, -1024, 2**39])
def test_no_boxes_are_copied_from_a_pool_that_a_tensor_map_cannot_describe(stride: int):
    found = call_of()
    pool = found.call.input("kv_pool")
    strides = (*pool.strides[:2], stride, *pool.strides[3:])
    inputs = (found.call.inputs[0], replace(pool, strides=strides), *found.call.inputs[2:])
    (launch,) = plan_prefill(PagedCall.of(replace(found.call, inputs=inputs)), H200).launches
    assert dict(launch.source.defines)["BOXES"] == "0"


def planned_over_e4m3(device: DeviceTraits = H200, **changes: object) -> CallPlan:
    call = call_of(**changes)  # type: ignore[arg-type]
    query, pool, *rest = call.call.inputs
    pool = TensorLayout.contiguous(DType.INT8, pool.shape)
    scales = TensorLayout.contiguous(F32, (*pool.shape[:2], pool.shape[3], pool.shape[2]))
    spec = PACKED_OPS["paged_attention_fp8"]
    return plan_prefill(PagedCall.of(replace(call.call, spec=spec, inputs=(query, pool, scales, *rest))), device)


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [({"rows": 1, "max_blocks": 63}, 8), ({"rows": 8, "tokens": 600}, 8 * 64), ({"rows": 100, "tokens": 99}, 3 * 64),
     ({"sliding_window": 100, "tokens": 200}, 6 * 4), ({"tokens": 4096, "rows": 64}, 512),
     ({"head_dim": 256, "rows": 2}, 2 * 128)],
    ids=str,
)  # fmt: skip
def test_keys_of_e4m3_are_converted_once_for_rows_of_several_tiles(changes: dict[str, object], blocks: int):
    """Blocks of 128 keys (64 of wide heads) of as many rows as can have more than 32 tokens, up to 256 MiB."""
    plan = planned_over_e4m3(**changes)
    convert, attend = plan.launches
    assert (convert.source.file, attend.source.file) == (CONVERT_FILE, WGMMA_FILE)
    assert {convert.source, attend.source} <= set(prefill_sources())
    assert convert.params.converted.blocks == attend.params.converted.blocks == blocks
    place = {name: convert.pointers[f"converted.{name}"] for name in ("shift", "zeros", "tiles")}
    assert all(source.memory is Memory.WORKSPACE and source.offset % 256 == 0 for source in place.values())
    assert place["shift"].offset + 4 * call_of(**changes).rows <= place["zeros"].offset  # type: ignore[arg-type]
    keys, columns = (64, 256) if changes.get("head_dim") == 256 else (128, 128)
    assert place["zeros"].offset + keys // 4 * 128 <= place["tiles"].offset
    assert plan.workspace_bytes == place["tiles"].offset + blocks * 8 * 2 * keys * columns * 2
    assert convert.overlap and attend.overlap and attend.pointers == convert.pointers


def test_keys_of_e4m3_that_one_tile_reads_are_converted_on_their_way():
    for device in (H200, ORIN, ADA):
        plan = planned_over_e4m3(device, tokens=32, rows=1)
        assert len(plan.launches) == 1 and plan.workspace_bytes == 0


@pytest.mark.parametrize(
    ("changes", "blocks", "rest"),
    [({"rows": 1, "max_blocks": 64}, 16, 8), ({"rows": 3, "max_blocks": 64}, 3 * 16, 3 * 8),
     ({"rows": 64, "tokens": 4096}, 256, (4096 // 32 + 64) * 8)],
    ids=str,
)  # fmt: skip
def test_without_hopper_converted_keys_of_e4m3_are_a_pool(changes: dict[str, object], blocks: int, rest: int):
    """Blocks of 64 keys up to 64 MiB, and a launch for the rows that are not converted."""
    plan = planned_over_e4m3(ORIN, **changes)
    convert, attend, other = plan.launches
    assert [launch.source.file for launch in plan.launches] == [CONVERT_FILE, MMA_FILE, MMA_FILE]
    assert {"CONVERTED_POOL", "CACHE_T"} <= dict(attend.source.defines).keys()
    assert dict(attend.source.defines)["CACHE_T"] != dict(other.source.defines)["CACHE_T"] == "E4m3"
    assert convert.params.converted.blocks == blocks and other.grid[0] == rest
    written = {name: convert.pointers[f"converted.{name}"] for name in ("shift", "lengths", "other_lengths", "tiles")}
    offsets = [place.offset for place in written.values()]
    assert offsets == sorted(offsets) and offsets[1] >= 4 * call_of(**changes).rows  # type: ignore[arg-type]
    assert all(place.memory is Memory.WORKSPACE and place.offset % 256 == 0 for place in written.values())
    read = [attend.pointers[name] for name in ("block_table", "seq_lens", "kv_pool")]
    assert read == [written["shift"], written["lengths"], written["tiles"]]
    assert other.pointers["seq_lens"] == written["other_lengths"]
    pool = attend.params
    assert (pool.block_size, pool.pool_slot, pool.pool_values, pool.pool_head) == (64, 128, 64 * 128, 2 * 64 * 128)
    assert plan.workspace_bytes == written["tiles"].offset + blocks * pool.pool_block * 2


@pytest.mark.parametrize("device", [ORIN, ADA], ids=["Orin", "Ada"])
@pytest.mark.parametrize("rows, max_blocks", [(1, 64), (8, 64), (64, 3)])
def test_calls_of_fewer_tokens_need_no_more_memory(rows: int, max_blocks: int, device: DeviceTraits):
    """Builders ask for the workspace of the most tokens, and tiles change with their number."""

    def memory(tokens: int) -> int:
        return planned_over_e4m3(device, tokens=tokens, rows=rows, max_blocks=max_blocks).workspace_bytes

    for most in (64, 512, 2048):
        assert max(memory(tokens) for tokens in range(2, most)) <= memory(most)


def test_only_calls_with_a_softcap_pay_for_it():
    assert dict(planned().source.defines)["SOFTCAP"] == "0"
    assert dict(planned(softcap=30.0).source.defines)["SOFTCAP"] == "1"
    assert dict(planned(ADA, softcap=30.0).source.defines)["SOFTCAP"] == "1"


def test_sinks_are_null_where_absent():
    assert "call.sinks" not in planned().pointers
    assert planned(sinks=True).pointers["call.sinks"].memory is Memory.INPUT


def test_keys_of_a_pool_beyond_31_bits_of_16_bytes_are_found_by_heads():
    blocks = (2**31 - 1) // (16 * 8 * 128 // 8)
    assert "WIDE_POOL" not in dict(planned(pool_blocks=blocks).source.defines)
    wide = planned(pool_blocks=blocks + 1)
    assert dict(wide.source.defines)["WIDE_POOL"] == "1" and wide.source in set(prefill_sources())
    assert planned(pool_blocks=(2**31 - 1) // (16 * 8))
    assert "WIDE_POOL" not in dict(planned(ORIN, pool_blocks=2**28).source.defines)


def test_a_pool_beyond_31_bits_of_heads_is_refused():
    most = (2**31 - 1) // (16 * 8)
    words = r"keys of at most 511 GiB in a pool, at multiples of their heads, found 512 GiB .*: use fewer blocks"
    with pytest.raises(UnsupportedError, match=words):
        planned(pool_blocks=most + 1)


def test_a_large_pool_whose_keys_are_no_multiples_of_heads_is_refused():
    found = call_of(pool_blocks=2**21)
    pool = found.call.input("kv_pool")
    strides = (*pool.strides[:1], pool.strides[1] + 8, *pool.strides[2:])
    inputs = (found.call.inputs[0], replace(pool, strides=strides), *found.call.inputs[2:])
    with pytest.raises(UnsupportedError, match="at multiples of their heads"):
        plan_prefill(PagedCall.of(replace(found.call, inputs=inputs)), H200)


def test_more_tiles_than_a_grid_holds_are_refused():
    with pytest.raises(UnsupportedError, match="split the call"):
        planned(ORIN, tokens=2**33, heads=64, kv_heads=64)


def test_sources_cover_both_kernels_and_every_type():
    found = {(source.file, dict(source.defines)["DATA_T"]) for source in prefill_sources()}
    assert len(found) == 7
    assert len(set(prefill_sources())) == len(list(prefill_sources()))
