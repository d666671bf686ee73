"""Which kernel runs a ``causal_conv1d`` call; needs no GPU."""

from __future__ import annotations

import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import DeviceTraits, KernelLaunch, PackedRows
from hybridge.trt_plugins.kernels.compiler import compile_kernel
from hybridge.trt_plugins.kernels.ops.causal_conv1d import plan, sources
from tests.support.kernel_calls import H200, ORIN, op_call


def launch_of(
    *x_shape: int,
    dtype: torch.dtype = torch.bfloat16,
    width: int = 4,
    bias: bool = True,
    gap: int = 0,
    shift: int = 0,
    device: DeviceTraits = H200,
    packed: PackedRows | None = None,
    activation: str = "silu",
) -> KernelLaunch:
    channels = x_shape[-1]
    x = torch.empty(*x_shape[:-1], channels + gap, dtype=dtype)[..., shift : shift + channels]
    weight, offset = torch.empty(channels, 1, width, dtype=dtype), torch.empty(channels, dtype=dtype)
    state = torch.empty(x_shape[0] if packed is None else 16, channels, width, dtype=dtype)
    lengths = torch.empty(x_shape[0], dtype=torch.int32) if packed is None else None
    inputs = [x, weight, offset if bias else None, state, lengths]
    (launch,) = plan(
        op_call("causal_conv1d", inputs, [torch.empty_like(x), state], {"activation": activation}, packed), device
    ).launches
    return launch


def variant(launch: KernelLaunch) -> dict[str, str]:
    return dict(launch.source.defines)


@pytest.mark.parametrize("shape", [(3, 64), (3, 1, 64)])
def test_one_token_a_row_is_an_update(shape):
    assert launch_of(*shape).source.entry == "causal_conv1d_update"


def test_packed_rows_of_at_most_one_token_are_an_update():
    assert launch_of(40, 64, packed=PackedRows(3, 1)).source.entry == "causal_conv1d_update"
    assert launch_of(40, 64, packed=PackedRows(3, 2)).source.entry == "causal_conv1d_prefill"


@pytest.mark.parametrize(
    ("dtype", "width", "channels"),
    [
        (torch.bfloat16, 2, 4),
        (torch.bfloat16, 3, 2),
        (torch.float16, 4, 2),
        (torch.bfloat16, 8, 1),
        (torch.float32, 4, 1),
        (torch.float32, 2, 2),
    ],
)
def test_an_update_reads_16_bytes_of_state_where_it_can(dtype, width, channels):
    assert variant(launch_of(3, 64, dtype=dtype, width=width))["CHANNELS"] == str(channels)


def test_widths_without_such_an_access_are_shifted_in_shared_memory():
    assert launch_of(3, 64, width=7).source.entry == "causal_conv1d_update_shared"
    assert launch_of(3, 64, width=6, dtype=torch.float32).source.entry == "causal_conv1d_update_shared"
    others = (launch_of(3, 60, width=7), launch_of(3, 64, width=7, gap=1), launch_of(3, 64, width=3))
    assert {other.source.entry for other in others} == {"causal_conv1d_update"}


def test_odd_sizes_and_strides_fall_back_to_single_channels():
    assert variant(launch_of(3, 63))["CHANNELS"] == "1"
    assert variant(launch_of(3, 64, gap=1))["CHANNELS"] == "1"
    assert variant(launch_of(3, 64, gap=2))["CHANNELS"] == "2"
    assert variant(launch_of(3, 64, gap=2, shift=1))["CHANNELS"] == "1"
    assert variant(launch_of(3, 5, 64, gap=1))["CHANNELS"] == "1"
    assert variant(launch_of(3, 5, 64, gap=2))["CHANNELS"] == "2"


def test_the_grid_covers_channels_tokens_and_rows():
    launch = launch_of(3, 1000, 10240)
    tokens = launch.params.block_tokens
    assert launch.grid[0] * launch.block[0] * int(variant(launch)["CHANNELS"]) >= 10240
    assert (launch.grid[1] - 1) * tokens < 1000 <= launch.grid[1] * tokens
    assert launch.grid[2] == 3
    assert launch.params.block_tokens >= 8 - 1


def test_small_calls_take_fewer_tokens_a_block():
    assert launch_of(1, 128, 1024).params.block_tokens < launch_of(1, 16384, 10240).params.block_tokens


def test_an_update_has_a_block_for_every_row():
    launch = launch_of(33, 10240)
    assert launch.grid[1] == 33
    assert launch.grid[0] * launch.block[0] * int(variant(launch)["CHANNELS"]) >= 10240


def test_small_updates_take_smaller_blocks():
    assert [launch_of(rows, 10240).block[0] for rows in (1, 8, 64, 256)] == [64, 64, 256, 256]


def test_all_blocks_of_a_small_update_prefetch_and_the_first_ones_of_a_large_one():
    small, large = launch_of(1, 10240), launch_of(256, 10240)
    assert small.params.prefetch_blocks >= small.grid[0] * small.grid[1]
    assert large.params.prefetch_blocks == 2 * 132 < large.grid[0] * large.grid[1]


def test_strides_are_those_of_the_call():
    params = launch_of(3, 5, 64, gap=100).params
    assert (params.x_row_stride, params.x_token_stride) == (5 * 164, 164)
    assert (params.state_stride, params.rows.rows, params.rows.time) == (256, 3, 5)
    assert launch_of(40, 64, packed=PackedRows(3, 9)).params.x_row_stride == 0


def test_pointers_follow_the_addressing():
    dense, packed = launch_of(3, 5, 64), launch_of(40, 64, packed=PackedRows(3, 9), bias=False)
    assert "rows.context_lengths" in dense.pointers and "rows.query_start_loc" not in dense.pointers
    assert "rows.state_indices" in packed.pointers and "rows.context_lengths" not in packed.pointers
    assert "bias" in dense.pointers and "bias" not in packed.pointers


def test_dependent_launch_only_where_the_hardware_has_it():
    assert launch_of(3, 64).overlap
    assert not launch_of(3, 64, device=ORIN).overlap


def test_refuses_widths_that_no_kernel_has():
    with pytest.raises(UnsupportedError, match="kernel from 2 to 8, found kernel 9"):
        launch_of(3, 64, width=9)


def test_refuses_strided_channels():
    x = torch.empty(3, 64, 5).transpose(1, 2)
    weight, state, lengths = torch.empty(64, 1, 4), torch.empty(3, 64, 4), torch.empty(3, dtype=torch.int32)
    call = op_call("causal_conv1d", [x, weight, None, state, lengths], [torch.empty(3, 5, 64), state], {})
    with pytest.raises(UnsupportedError, match="expected x with its last 1 axes contiguous"):
        plan(call, H200)


def test_refuses_more_rows_than_a_grid_holds():
    with pytest.raises(UnsupportedError, match="split the call"):
        launch_of(70000, 2, 8)


def test_variants_compile_without_local_memory():
    pytest.importorskip("cuda.core", reason="needs cuda-core and NVRTC (extra cuda)")
    chosen = [s for s in dict.fromkeys(sources()) if "__half" in s.label][:2]
    for source in chosen:
        assert compile_kernel(source, "sm_87").report.problem is None
