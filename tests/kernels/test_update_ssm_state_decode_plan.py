"""Which kernel runs an ``update_ssm_state`` call with one token per row; needs no GPU."""

from __future__ import annotations

import math

import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import DeviceTraits, KernelLaunch, PackedRows
from hybridge.trt_plugins.kernels.compiler import compile_kernel
from hybridge.trt_plugins.kernels.ops.update_ssm_state import plan, sources
from tests.support.kernel_calls import H200, ORIN, op_call

BF16, F32 = torch.bfloat16, torch.float32


def launch_of(
    rows: int = 3,
    heads: int = 128,
    head_dim: int = 64,
    groups: int = 8,
    state_size: int = 128,
    time: int | None = None,
    dtype: torch.dtype = BF16,
    state: torch.dtype = F32,
    gap: int = 0,
    packed: PackedRows | None = None,
    device: DeviceTraits = H200,
    attributes: dict[str, object] | None = None,
    states: torch.Tensor | None = None,
) -> KernelLaunch:
    lead = (rows, time) if time else (rows,)
    sizes = [heads * head_dim, groups * state_size, groups * state_size, heads]
    x, B, C, dt = torch.empty(*lead, sum(sizes) + gap, dtype=dtype)[..., gap:].split(sizes, -1)
    x, B, C = x.unflatten(-1, (heads, head_dim)), *(t.unflatten(-1, (groups, state_size)) for t in (B, C))
    parameter = torch.empty(heads)
    states = torch.empty(rows, heads, head_dim, state_size, dtype=state) if states is None else states
    lengths = None if packed else torch.empty(rows, dtype=torch.int32)
    inputs = [x, parameter, B, C, parameter, dt, parameter, states, lengths]
    y = torch.empty(*lead, heads, head_dim, dtype=dtype)
    (launch,) = plan(op_call("update_ssm_state", inputs, [y, states], attributes or {}, packed), device).launches
    return launch


def variant(launch: KernelLaunch) -> dict[str, str]:
    return dict(launch.source.defines)


def test_blocks_prefetch_all_where_they_are_few_and_the_first_ones_where_they_are_many():
    few, many = launch_of(rows=1), launch_of(rows=8)
    assert few.params.prefetch_blocks >= math.prod(few.grid) and few.block[0] == 128
    assert many.params.prefetch_blocks == 2 * 132 < math.prod(many.grid)


def test_no_prefetch_before_the_hardware_has_dependent_launches_or_of_odd_states():
    assert launch_of(rows=1, device=ORIN).params.prefetch_blocks == 0
    odd = torch.empty(1, 128 * 64 * 128 + 1)[:, 1:].unflatten(-1, (128, 64, 128))
    assert launch_of(rows=1, states=odd).params.prefetch_blocks == 0


@pytest.mark.parametrize("time", [None, 1])
def test_one_token_a_row_is_one_pass_over_the_state(time):
    assert launch_of(time=time).source.entry == "update_ssm_state_decode"


def test_packed_rows_of_at_most_one_token_decode():
    launch = launch_of(packed=PackedRows(2, 1))
    assert launch.source.entry == "update_ssm_state_decode"
    assert launch.grid[2] == launch.params.rows.rows == 2


@pytest.mark.parametrize("state", [F32, BF16], ids=str)
@pytest.mark.parametrize(("head_dim", "state_size"), [(64, 128), (80, 128), (8, 8), (72, 40), (256, 256), (64, 200)])
def test_lanes_and_blocks_cover_the_state(head_dim, state_size, state):
    for rows in (1, 8, 64):
        launch = launch_of(rows, head_dim=head_dim, state_size=state_size, state=state)
        macros = {name: int(value) for name, value in variant(launch).items() if value.isdigit()}
        lanes, passes = macros["LANES"], macros["PASSES"]
        assert lanes in (1, 2, 4, 8, 16, 32)
        assert state_size % macros["STATE_ACCESS"] == 0 and macros["STATE_ACCESS"] % macros["GROUP_ACCESS"] == 0
        parts = -(-head_dim // (launch.block[0] // lanes * passes))
        assert launch.grid == (16 * parts, 8, rows)


@pytest.mark.parametrize(("state", "elements"), [(F32, "4"), (BF16, "8")], ids=str)
def test_the_state_moves_in_16_bytes(state, elements):
    assert variant(launch_of(state=state))["STATE_ACCESS"] == elements


def test_narrow_rows_and_odd_strides_narrow_the_accesses():
    assert variant(launch_of(state=BF16, state_size=72))["STATE_ACCESS"] == "8"
    assert variant(launch_of(state=BF16))["GROUP_ACCESS"] == "8"
    assert variant(launch_of())["GROUP_ACCESS"] == "4"
    assert variant(launch_of(gap=2))["GROUP_ACCESS"] == "2"
    assert variant(launch_of(gap=1))["GROUP_ACCESS"] == "1"


def test_strides_and_attributes_are_those_of_the_call():
    attributes = {"dt_softplus": 0, "time_step_min": -math.inf, "time_step_max": 0.5}
    params = launch_of(4, 6, 64, 2, 16, gap=40, attributes=attributes).params
    width = 6 * 64 + 2 * 2 * 16 + 6 + 40
    assert (params.x_row, params.x_token, params.x_head) == (width, 0, 64)
    assert (params.B_row, params.B_group, params.dt_row) == (width, 16, width)
    assert (params.y_row, params.state_slot, params.heads_per_group) == (6 * 64, 6 * 64 * 16, 3)
    assert (params.dt_min, params.dt_max) == (-math.inf, 0.5)
    assert [variant(launch_of(attributes={"dt_softplus": value}))["SOFTPLUS"] for value in (0, 1)] == ["0", "1"]


def test_packed_tokens_have_a_token_stride():
    params = launch_of(4, 6, 64, 2, 16, packed=PackedRows(3, 1)).params
    assert (params.x_row, params.x_token) == (0, 6 * 64 + 2 * 2 * 16 + 6)


def test_pointers_follow_the_addressing():
    dense, packed = launch_of(), launch_of(packed=PackedRows(3, 1))
    assert "rows.context_lengths" in dense.pointers and "rows.query_start_loc" not in dense.pointers
    assert "rows.state_indices" in packed.pointers and "rows.context_lengths" not in packed.pointers
    assert "rows.state_indices" not in launch_of(packed=PackedRows(3, 1, has_state_indices=False)).pointers


def test_dependent_launch_only_where_the_hardware_has_it():
    assert launch_of().overlap
    assert not launch_of(device=ORIN).overlap


@pytest.mark.parametrize(("name", "size"), [("head_dim", 264), ("state_size", 12)])
def test_refuses_sizes_that_no_kernel_has(name, size):
    with pytest.raises(UnsupportedError, match=f"{name} from 8 to 256 in multiples of 8, found {name} {size}"):
        launch_of(**{name: size})


def test_refuses_more_rows_than_a_grid_holds():
    with pytest.raises(UnsupportedError, match="split the call"):
        launch_of(65536, heads=1, groups=1, head_dim=8, state_size=8)


def test_refuses_strided_states():
    x, f, n = torch.empty(2, 4, 8), torch.empty(4), torch.empty(2, dtype=torch.int32)
    B, state = torch.empty(2, 1, 8), torch.empty(2, 8, 4, 8).transpose(1, 2)
    call = op_call("update_ssm_state", [x, f, B, B, f, torch.empty(2, 4), f, state, n], [x, state], {})
    with pytest.raises(UnsupportedError, match="expected state with its last 3 axes contiguous"):
        plan(call, H200)


def test_variants_compile_without_local_memory():
    pytest.importorskip("cuda.core", reason="needs cuda-core and NVRTC (extra cuda)")
    chosen = [s for s in dict.fromkeys(sources()) if s.entry == "update_ssm_state_decode"]
    assert chosen
    for source in chosen[:2]:
        assert compile_kernel(source, "sm_87").report.problem is None
