"""The launches of a ``paged_attention`` call with rows of any length; needs no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, PackedRows
from hybridge.trt_plugins.kernels.ops import paged_attention
from tests.kernels.test_paged_attention_decode_plan import call_of
from tests.support.kernel_calls import H200


def test_tokens_of_as_many_rows_need_no_prefill() -> None:
    plan = paged_attention.plan(call_of(rows=8), H200)
    assert len(plan.launches) == 1 and plan.launches[0].params.every_token == 1
    known = paged_attention.plan(call_of(rows=8, packed=PackedRows(8, 1)), H200)
    assert len(known.launches) == 1 and known.launches[0].params.every_token == 0


@pytest.mark.parametrize("packed", [None, PackedRows(8, 30)])
def test_longer_rows_follow_in_launches_of_their_own(packed: PackedRows | None) -> None:
    plan = paged_attention.plan(call_of(rows=8, tokens=100, packed=packed), H200)
    decode, *prefill = plan.launches
    assert prefill and decode.params.every_token == 0 and decode.params.items == 8


def wide(device: DeviceTraits = H200, **call: object) -> CallPlan:
    sizes = {"rows": 8, "heads": 32, "kv_heads": 1, "head_dim": 576, "parts": 1, **call}
    return paged_attention.plan(call_of(**sizes), device)  # type: ignore[arg-type]


def test_wide_heads_split_positions_where_rows_are_few() -> None:
    few, many = wide(packed=PackedRows(8, 1)), wide(rows=200, packed=PackedRows(200, 1))
    entries = [launch.source.entry for launch in few.launches]
    assert entries == ["paged_attention_wide_wgmma", "paged_attention_wide_merge"]
    assert few.launches[0].grid[0::2] == (1, 8) and few.launches[0].params.splits == few.launches[0].grid[1] > 1
    assert few.workspace_bytes >= 8 * few.launches[0].params.splits * 32 * (576 + 2) * 4
    (only,) = many.launches
    assert only.grid == (1, 1, 200) and many.workspace_bytes == 0


@pytest.mark.parametrize(("rows", "shares"), [(1, "16"), (8, "4"), (33, "1"), (66, "1")])
def test_more_threads_join_the_splits_of_fewer_rows(rows: int, shares: str) -> None:
    """Blocks of 576 threads, each with four columns of a query and a share of its splits, cover a tile."""
    merge = wide(rows=rows, packed=PackedRows(rows, 1)).launches[1]
    assert dict(merge.source.defines)["SHARES"] == shares
    assert merge.grid == (1, 32 * 576 * int(shares) // (4 * 576), rows)


def test_wide_heads_take_prompts_as_tiles_of_queries() -> None:
    launch = wide(tokens=100, packed=PackedRows(8, 30)).launches[0]
    assert launch.params.tiles == launch.grid[0] == 30


def test_no_more_tokens_than_rows_are_planned_as_rows_of_one() -> None:
    known, unknown = wide(packed=PackedRows(8, 1)).launches[0], wide().launches[0]
    assert known.grid == unknown.grid and (known.params.by_token, unknown.params.by_token) == (0, 1)
    fewer = wide(tokens=5).launches[0]
    assert fewer.params.by_token == 1 and fewer.grid[2] == 5 and fewer.params.call.rows == 8


@pytest.mark.parametrize(("shared_bytes", "keys"), [(232448, "64"), (166912, "32"), (101376, "16")])
def test_wide_heads_take_fewer_positions_where_shared_memory_is_small(shared_bytes: int, keys: str) -> None:
    launch = wide(replace(H200, capability=(10, 0), shared_bytes=shared_bytes), rows=200).launches[0]
    assert launch.source.entry == "paged_attention_wide"
    assert launch.shared_bytes <= shared_bytes and dict(launch.source.defines)["KEYS"] == keys


def test_no_call_of_wide_heads_needs_a_larger_workspace() -> None:
    """A builder asks for the workspace of some numbers of rows and tokens, and runs the others in it."""
    asked = wide(rows=1, packed=PackedRows(1, 1)).workspace_bytes
    for rows in range(1, 140):
        for heads in (8, 32, 128):
            planned = wide(rows=rows, heads=heads, packed=PackedRows(rows, 1))
            params = planned.launches[0].params
            parts = planned.launches[0].grid[0] * rows * params.splits * 32
            assert planned.workspace_bytes <= asked
            assert params.splits == 1 or parts * (576 + 2) * 4 <= planned.workspace_bytes


@pytest.mark.parametrize(
    ("call", "message"),
    [({"head_dim": 512}, "head_dim"), ({"dtype": DType.FLOAT32}, "16-bit"), ({"parts": 2}, "keys and values")],
)
def test_other_wide_heads_are_refused(call: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        wide(**call)


def test_wide_heads_are_refused_without_the_shared_memory() -> None:
    with pytest.raises(UnsupportedError, match="shared memory"):
        wide(replace(H200, shared_bytes=65536))
