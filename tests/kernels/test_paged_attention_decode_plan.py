"""Which launch decodes a ``paged_attention`` call; needs no GPU."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.catalog import PACKED_OPS
from hybridge.trt_plugins.kernels.architectures import CHECKED
from hybridge.trt_plugins.kernels.call import DeviceTraits, KernelLaunch, Memory, OpCall, PackedRows
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.paged_attention_call import PagedCall
from hybridge.trt_plugins.kernels.ops.paged_attention_decode import DecodeLaunch, decode_launch, decode_sources
from hybridge.trt_plugins.plugins.targets import traits_from_capability
from tests.support.kernel_calls import H200, ORIN, capability_from_architecture

SPEC = PACKED_OPS["paged_attention"]
BF16, F16, F32, I32 = DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.INT32


def call_of(
    rows: int = 8,
    tokens: int | None = None,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    block_size: int = 16,
    max_blocks: int = 512,
    dtype: DType = BF16,
    packed: PackedRows | None = None,
    pool_strides: tuple[int, ...] | None = None,
    parts: int = 2,
    **attributes: float,
) -> OpCall:
    query = TensorLayout.contiguous(dtype, (rows if tokens is None else tokens, heads, head_dim))
    pool = TensorLayout.contiguous(dtype, (parts, 1000, block_size, kv_heads, head_dim))
    if pool_strides:
        pool = replace(pool, strides=pool_strides)
    inputs = (
        query,
        pool,
        TensorLayout.contiguous(I32, (rows, max_blocks)),
        TensorLayout.contiguous(I32, (rows + 1,)),
        TensorLayout.contiguous(I32, (rows,)),
        None,
    )
    return OpCall(SPEC, inputs, (query,), SPEC.complete_attributes(attributes), packed)


def planned(call: OpCall, device: DeviceTraits = H200) -> DecodeLaunch:
    return decode_launch(PagedCall.of(call), device)


def macros(launch: KernelLaunch) -> dict[str, str]:
    return dict(launch.source.defines)


@pytest.mark.parametrize("rows", [8, 64])
def test_long_rows_share_every_multiprocessor(rows: int) -> None:
    plan = planned(call_of(rows))
    assert macros(plan.launch)["CLUSTER"] == "0"
    assert plan.launch.grid[0] % H200.multiprocessors == 0
    assert plan.counter_bytes == 4 * rows * 8
    assert plan.workspace_bytes == plan.launch.grid[0] * 2 * 8 * 130 * 4


def test_short_rows_take_a_block_for_each_head() -> None:
    plan = planned(call_of(rows=8, max_blocks=8))
    assert macros(plan.launch)["CLUSTER"] == "1" and plan.launch.grid == (1, 8, 8)
    assert plan.workspace_bytes == plan.counter_bytes == 0
    assert not {"partials", "counters"} & set(plan.launch.pointers)


def test_rows_that_no_block_can_keep_take_a_block_for_each_head() -> None:
    assert macros(planned(call_of(rows=5000)).launch)["CLUSTER"] == "1"
    assert macros(planned(call_of(rows=64, heads=64, kv_heads=64, max_blocks=1 << 20)).launch)["CLUSTER"] == "1"


@pytest.mark.parametrize(("rows", "blocks", "cluster"), [(1, 64, 8), (1, 256, 8), (4, 64, 4), (8, 64, 2), (8, 128, 2)])
def test_few_rows_are_read_by_clusters(rows: int, blocks: int, cluster: int) -> None:
    plan = planned(call_of(rows, max_blocks=blocks))
    assert macros(plan.launch)["CLUSTER"] == str(plan.launch.cluster) == str(cluster)
    assert plan.launch.grid == (cluster, 8, rows)
    assert plan.workspace_bytes == plan.counter_bytes == 0


def test_without_clusters_few_rows_share_a_line() -> None:
    assert macros(planned(call_of(1), ORIN).launch)["CLUSTER"] == "0"
    assert macros(planned(call_of(1), replace(H200, capability=(12, 0))).launch)["CLUSTER"] == "0"


def test_clusters_that_leave_multiprocessors_idle_are_for_few_positions() -> None:
    assert macros(planned(call_of(1, max_blocks=256)).launch)["CLUSTER"] == "8"
    assert macros(planned(call_of(1, max_blocks=512)).launch)["CLUSTER"] == "0"


@pytest.mark.parametrize(
    ("group", "head_dim", "tiles", "units"),
    [(1, 128, 1, 1), (8, 128, 1, 1), (9, 128, 2, 1), (16, 64, 2, 1), (17, 64, 2, 2), (9, 256, 1, 2)],
)
def test_a_group_is_read_with_as_few_tiles_as_registers_allow(
    group: int, head_dim: int, tiles: int, units: int
) -> None:
    launch = planned(call_of(heads=2 * group, kv_heads=2, head_dim=head_dim)).launch
    assert macros(launch)["QUERY_TILES"] == str(tiles) and launch.params.units == 2 * units
    assert launch.params.merged_heads == min(group, 8 * tiles)


def test_with_as_many_rows_as_tokens_each_token_is_an_item() -> None:
    """A row of two tokens next to an empty one is possible, unless the caller excludes it."""
    assert planned(call_of(rows=8)).launch.params.every_token == 1
    few = planned(call_of(rows=8, tokens=5)).launch
    assert few.params.every_token == 1 and few.params.items == 5
    assert planned(call_of(rows=8, packed=PackedRows(8, 1))).launch.params.every_token == 0
    mixed = planned(call_of(rows=8, tokens=100)).launch
    assert mixed.params.every_token == 0 and mixed.params.items == 8


def test_parameters() -> None:
    strides = (7 * 2**20, 2**14, 1024, 128, 1)
    launch = planned(call_of(pool_strides=strides, sliding_window=40, softcap=3.0)).launch
    call = launch.params.call
    assert (call.pool_values, call.pool_block, call.pool_slot, call.pool_head) == strides[:4]
    assert (call.query_token, call.query_head, call.table_row) == (4096, 128, 512)
    assert (call.rows, call.heads, call.kv_heads, call.group) == (8, 32, 8, 4)
    assert (call.sliding_window, call.softcap) == (40, 3.0) and call.scale == pytest.approx(128**-0.5)
    assert launch.pointers["call.seq_lens"].index == 4 and "call.sinks" not in launch.pointers
    assert launch.pointers["counters"].memory is Memory.COUNTERS


@pytest.mark.parametrize("architecture", CHECKED)
@pytest.mark.parametrize("dtype", [BF16, F32], ids=lambda dtype: dtype.value)
def test_every_head_dim_runs_on_every_gpu(architecture: str, dtype: DType) -> None:
    device = traits_from_capability(capability_from_architecture(architecture))[0]
    for head_dim, group, rows in itertools.product(range(64, 257, 8), (1, 8, 12), (1, 64, 1000)):
        launch = planned(call_of(rows, heads=2 * group, kv_heads=2, head_dim=head_dim, dtype=dtype), device).launch
        blocks = int(macros(launch)["BLOCKS"])
        assert blocks * (launch.shared_bytes + 1024) <= device.shared_bytes + 1024
        assert math.prod(launch.block) == 32 * int(macros(launch)["WARPS"])
        assert launch.overlap == (device.capability >= (9, 0))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_blocks_of_the_next_launch_find_no_room_beside_the_line(head_dim: int) -> None:
    launch = planned(call_of(64, head_dim=head_dim)).launch
    assert macros(launch)["BLOCKS"] == "2"
    assert 3 * (launch.shared_bytes + 1024) > H200.shared_bytes + 1024 >= 2 * (launch.shared_bytes + 1024)


def test_orin_takes_the_same_kernel() -> None:
    assert planned(call_of(1), ORIN).launch.grid[0] % ORIN.multiprocessors == 0


def test_the_checked_sources_hold_what_is_chosen() -> None:
    checked = set(decode_sources())
    for head_dim, max_blocks, rows in itertools.product((64, 128, 256), (8, 64, 512), (8, 64)):
        assert planned(call_of(rows, head_dim=head_dim, max_blocks=max_blocks)).launch.source in checked
    assert planned(call_of(64, dtype=F16)).launch.source in checked
    assert (
        planned(call_of(64, dtype=F32)).launch.source in checked and not planned(call_of(dtype=F32)).launch.source.hot
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_dim": 56}, "head_dim 576 or from 64 to 256 in multiples of 8"),
        ({"block_size": 8}, "block_size from 16 to 128 in multiples of 16"),
        ({"kv_heads": 5}, "kv_heads to divide heads"),
        ({"pool_strides": (2**24, 2**14, 1028, 128, 1)}, "kv_pool that start at multiples of 16 bytes"),
        ({"pool_strides": (2**24, 2**14, 1024, 128, 2)}, "kv_pool with its last 1 axes contiguous"),
    ],
)
def test_what_no_kernel_runs_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        planned(call_of(**changes))  # type: ignore[arg-type]
