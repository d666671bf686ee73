"""The launch of a ``reshape_and_cache`` call; needs no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.catalog import PACKED_OPS
from hybridge.trt_plugins.kernels.call import DeviceTraits, KernelLaunch, OpCall
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.reshape_and_cache import plan, sources
from tests.support.kernel_calls import H200, ORIN

SPEC = PACKED_OPS["reshape_and_cache"]
BF16, F32 = DType.BFLOAT16, DType.FLOAT32


def launch_of(
    tokens: int = 100,
    heads: int = 8,
    head_dim: int = 128,
    dtype: DType = BF16,
    token_stride: int | None = None,
    alignment: int = 16,
    device: DeviceTraits = H200,
) -> KernelLaunch:
    rows = TensorLayout.contiguous(dtype, (tokens, heads, head_dim))
    rows = replace(rows, strides=(token_stride or heads * head_dim, head_dim, 1), alignment=alignment)
    pool = TensorLayout.contiguous(dtype, (2, 50, 16, heads, head_dim))
    slots = TensorLayout.contiguous(DType.INT32, (tokens,))
    (launch,) = plan(OpCall(SPEC, (rows, rows, pool, slots), (pool,), {}), device).launches
    return launch


def test_heads_move_in_accesses_of_16_bytes() -> None:
    launch = launch_of()
    assert dict(launch.source.defines) == {"ITEM": "2", "ACCESS": "16", "THREADS": "128"}
    assert launch.grid == (1, 100, 2) and launch.params.runs == 16 and launch.overlap
    assert (launch.params.pool_values, launch.params.pool_block) == (50 * 16 * 1024, 16 * 1024)


@pytest.mark.parametrize(
    ("changes", "access"),
    [
        ({"dtype": F32}, 16),
        ({"head_dim": 100}, 8),
        ({"head_dim": 6}, 4),
        ({"head_dim": 3}, 2),
        ({"head_dim": 1, "dtype": F32}, 4),
        ({"token_stride": 1028}, 8),
        ({"token_stride": 1025}, 2),
        ({"alignment": 4}, 4),
    ],
)
def test_accesses_are_as_wide_as_all_tensors_allow(changes: dict[str, object], access: int) -> None:
    launch = launch_of(**changes)  # type: ignore[arg-type]
    assert dict(launch.source.defines)["ACCESS"] == str(access)
    assert launch.source in set(sources())


def test_more_tokens_than_a_grid_has_rows_take_turns() -> None:
    assert launch_of(tokens=100_000).grid[1] == 65535


def test_before_hopper_launches_do_not_overlap() -> None:
    assert not launch_of(device=ORIN).overlap


def test_a_pool_of_other_strides_is_refused() -> None:
    rows = TensorLayout.contiguous(BF16, (4, 8, 128))
    pool = TensorLayout.contiguous(BF16, (2, 50, 16, 8, 128))
    out = replace(pool, strides=(2 * pool.strides[0], *pool.strides[1:]))
    slots = TensorLayout.contiguous(DType.INT32, (4,))
    with pytest.raises(UnsupportedError, match="expected kv_pool_out to be kv_pool"):
        plan(OpCall(SPEC, (rows, rows, pool, slots), (out,), {}), H200)
