"""Plans of the chunked ``update_ssm_state``: which kernel, how many blocks, what is refused. No GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, Memory, OpCall, PackedRows
from hybridge.trt_plugins.kernels.ops.update_ssm_state_prefill import plan_prefill, prefill_sources
from tests.support.kernel_calls import H200, op_call

ORIN = replace(H200, capability=(8, 7), multiprocessors=16, shared_bytes=166912)
AMPERE = replace(H200, capability=(8, 0), shared_bytes=166912)
ADA = replace(H200, capability=(8, 9), multiprocessors=128, shared_bytes=101376)


def prefill(
    rows: int = 1,
    time: int = 1024,
    heads: int = 128,
    head_dim: int = 64,
    groups: int = 8,
    state_size: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    gap: int = 0,
    state_gap: int = 0,
    packed: PackedRows | None = None,
) -> OpCall:
    """A call on tensors without memory; ``gap`` elements lie between the tokens of x, ``state_gap`` between states."""
    lead = (rows, time) if packed is None else (rows * time,)

    def data(*sizes: int) -> torch.Tensor:
        return torch.empty(*lead, *sizes, dtype=dtype, device="meta")

    x = data(heads * head_dim + gap)[..., : heads * head_dim].unflatten(-1, (heads, head_dim))
    vector = torch.empty(heads, device="meta")
    numbers = heads * head_dim * state_size
    state = torch.empty(rows, numbers + state_gap, device="meta")[:, :numbers]
    state = state.unflatten(1, (heads, head_dim, state_size))
    projections = data(groups, state_size), data(groups, state_size)
    lengths = None if packed is not None else torch.empty(rows, dtype=torch.int32, device="meta")
    inputs = [x, vector, *projections, vector, data(heads), vector, state, lengths]
    return op_call("update_ssm_state", inputs, [data(heads, head_dim), state], {}, packed)


def defines(plan: CallPlan, launch: int = 0) -> dict[str, str]:
    return dict(plan.launches[launch].source.defines)


def test_hopper_runs_16_bit_data_on_warpgroup_products():
    assert "wgmma" in plan_prefill(prefill(), H200).launches[0].source.file


@pytest.mark.parametrize(
    "call, device",
    [(prefill(time=383), ORIN), (prefill(dtype=torch.float32), ORIN), (prefill(state_size=256), H200),
     (prefill(gap=4), H200), (prefill(rows=2, state_gap=1), H200),
     (prefill(rows=2, state_gap=1), ORIN)],
    ids=["short rows", "float32", "large state", "unaligned", "odd states", "odd states before Hopper"],
)  # fmt: skip
def test_everything_else_runs_on_the_portable_kernel(call, device):
    assert "prefill_mma" in plan_prefill(call, device).launches[0].source.file


@pytest.mark.parametrize("device", [AMPERE, ADA, ORIN], ids=["Ampere", "Ada", "Orin"])
@pytest.mark.parametrize("head_dim, columns", [(64, 64), (128, 64), (80, 48), (8, 16)])
def test_before_hopper_states_of_16_bit_data_stay_in_registers(head_dim, columns, device):
    (launch,) = plan_prefill(prefill(rows=16, head_dim=head_dim), device).launches
    assert "prefill_registers" in launch.source.file
    assert dict(launch.source.defines)["SLICE"] == str(columns)
    assert launch.block == (128 + 2 * columns, 1, 1) and launch.shared_bytes <= device.shared_bytes
    assert launch.grid == (128 * -(-head_dim // 64), 16, 1)


@pytest.mark.parametrize(
    "heads, device, segments",
    [(48, AMPERE, 5), (88, AMPERE, 3), (89, AMPERE, 1), (1, AMPERE, 8), (42, ADA, 3), (43, ADA, 1)],
    ids=str,
)
def test_states_in_registers_are_cut_into_at_least_three_segments(heads, device, segments):
    """Two blocks run on a multiprocessor of 163 KiB, one of 99."""
    plan = plan_prefill(prefill(heads=heads, groups=1, time=4096), device)
    assert len(plan.launches) == (1 if segments == 1 else 2)
    assert plan.launches[-1].grid == (heads, 1, segments)
    places = device.multiprocessors * (2 if device is AMPERE else 1)
    assert plan.workspace_bytes == (0 if segments == 1 else 4 * places * (64 * 128 + 1))


def test_elements_are_loaded_one_by_one_where_rows_are_not_aligned():
    assert defines(plan_prefill(prefill(time=200, gap=8), ORIN))["ALIGNED"] == "1"
    assert defines(plan_prefill(prefill(gap=4), ORIN))["ALIGNED"] == "0"


@pytest.mark.parametrize("device", [H200, ORIN], ids=["wgmma", "mma"])
def test_many_rows_take_one_pass_without_scratch(device):
    plan = plan_prefill(prefill(rows=64), device)
    assert len(plan.launches) == 1 and plan.workspace_bytes == 0
    assert "scratch" not in plan.launches[0].pointers


@pytest.mark.parametrize("device", [H200, ADA], ids=["wgmma", "mma"])
def test_few_long_rows_are_cut_into_segments(device):
    plan = plan_prefill(prefill(heads=8, groups=1, time=16384), device)
    states, outputs = plan.launches
    assert states.grid[2] == outputs.grid[2] - 1 == outputs.params.segments - 1 > 0
    assert states.pointers["scratch"].memory is outputs.pointers["scratch"].memory is Memory.WORKSPACE
    assert plan.workspace_bytes >= outputs.params.segments * 8 * 64 * 128 * 4


@pytest.mark.parametrize("heads, launches", [(48, 2), (64, 2), (65, 1), (128, 1)])
def test_blocks_of_eight_warps_take_a_second_pass_only_on_a_half_empty_device(heads, launches):
    assert len(plan_prefill(prefill(heads=heads, groups=1, time=4096, gap=4), ADA).launches) == launches


@pytest.mark.parametrize(
    "head_dim, dtype, warps",
    [(64, torch.bfloat16, 8), (24, torch.float16, 8), (16, torch.bfloat16, 4), (64, torch.float32, 4)],
    ids=str,
)
def test_slices_of_16_bits_wider_than_16_columns_take_eight_warps(head_dim, dtype, warps):
    (launch,) = plan_prefill(prefill(rows=64, time=200, head_dim=head_dim, dtype=dtype), ADA).launches
    assert launch.block == (32 * warps, 1, 1)


@pytest.mark.parametrize("device", [H200, ORIN, ADA], ids=["H200", "Orin", "Ada"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("sizes", [(8, 8), (64, 128), (80, 128), (256, 128)], ids=str)
def test_shared_memory_fits_the_device(sizes, dtype, device):
    plan = plan_prefill(prefill(head_dim=sizes[0], state_size=sizes[1], heads=8, dtype=dtype), device)
    assert all(0 < launch.shared_bytes <= device.shared_bytes for launch in plan.launches)
    assert all(int(defines(plan)["SLICE"]) % 8 == 0 for launch in plan.launches)


@pytest.mark.parametrize("device", [H200, ORIN, ADA], ids=["H200", "Orin", "Ada"])
@pytest.mark.parametrize("sizes", [(128, 256), (256, 256)], ids=str)
def test_large_states_of_16_bit_data_fit_every_device(sizes, device):
    plan = plan_prefill(prefill(head_dim=sizes[0], state_size=sizes[1], heads=8), device)
    assert all(0 < launch.shared_bytes <= device.shared_bytes for launch in plan.launches)


@pytest.mark.parametrize("state_size", [144, 152, 256])
def test_large_states_of_float_data_take_shorter_chunks_where_shared_memory_is_small(state_size):
    call = prefill(state_size=state_size, heads=8, dtype=torch.float32)
    wide, narrow = plan_prefill(call, ORIN), plan_prefill(call, ADA)
    assert defines(wide)["CHUNK_TOKENS"] == "64"
    assert defines(narrow)["CHUNK_TOKENS"] == ("64" if state_size < 152 else "32")
    assert narrow.launches[0].shared_bytes <= ADA.shared_bytes


def test_a_gpu_with_too_little_shared_memory_is_refused():
    with pytest.raises(UnsupportedError, match="a GPU with 89856 bytes of shared memory a block for float32"):
        plan_prefill(prefill(state_size=256, heads=8, dtype=torch.float32), replace(ADA, shared_bytes=65536))


def test_strides_of_dense_and_packed_rows():
    dense = plan_prefill(prefill(rows=3, time=5, heads=8, gap=8), ORIN).launches[0].params
    assert (dense.x_row, dense.x_token) == (5 * 520, 520)
    packed = plan_prefill(prefill(rows=3, time=5, heads=8, gap=8, packed=PackedRows(3, 5)), ORIN).launches[0]
    assert (packed.params.x_row, packed.params.x_token) == (0, 520)
    assert packed.pointers["rows.state_indices"].memory is Memory.PACKED


def test_sizes_without_a_kernel_are_refused():
    with pytest.raises(UnsupportedError, match="head_dim"):
        plan_prefill(prefill(head_dim=12), H200)
    with pytest.raises(UnsupportedError, match="rows"):
        plan_prefill(prefill(rows=65536, time=2, heads=8), H200)


@pytest.mark.parametrize(
    "rows, heads, time, launches",
    [(1, 128, 4096, 1), (1, 99, 4096, 1), (1, 98, 4096, 2), (1, 48, 4096, 2), (8, 48, 1024, 1)],
)
def test_hopper_cuts_rows_only_where_several_segments_of_pairs_fit(rows, heads, time, launches):
    plan = plan_prefill(prefill(rows=rows, heads=heads, groups=1, time=time), H200)
    assert [launch.block[0] for launch in plan.launches] == ([512] if launches == 1 else [384, 384])
    assert plan.launches[0].grid[0] == (heads if launches == 1 else heads // 2)


def test_sources_cover_every_kernel_and_every_type():
    files = {(source.file, dict(source.defines)["DATA_T"]) for source in prefill_sources()}
    assert len(files) == 9
