"""Which kernels run a ``mamba2_conv_scan`` call; needs no GPU."""

from __future__ import annotations

import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, Memory, PackedRows
from hybridge.trt_plugins.kernels.compiler import compile_kernel
from hybridge.trt_plugins.kernels.ops.mamba2_conv_scan import plan, sources
from tests.support.kernel_calls import H200, ORIN, op_call

BF16, F32 = torch.bfloat16, torch.float32
STEP, CONV, UPDATE = "mamba2_step", "causal_conv1d_update", "update_ssm_state_decode"
PROMPT, SCAN = "causal_conv1d_prefill", "update_ssm_state_prefill"


def plan_of(
    rows: int = 1,
    heads: int = 128,
    groups: int = 8,
    time: int | None = None,
    state: torch.dtype = F32,
    kernel: int = 4,
    short: int = 0,
    gap: int = 0,
    dtype: torch.dtype = BF16,
    packed: PackedRows | None = None,
    device: DeviceTraits = H200,
) -> CallPlan:
    """head_dim 64 and state_size 128; gate, conv_input and dt are slices of one tensor, as of a projection with
    ``gap`` more elements a token."""
    lead, inner, width = (rows, time) if time else (rows,), heads * 64, heads * 64 + 2 * groups * 128 - short
    wide = torch.empty(*lead, inner + width + heads + gap, dtype=dtype)
    gate, conv_input, dt, _ = wide.split([inner, width, heads, gap], -1)
    weight, bias = torch.empty(width, 1, kernel, dtype=dtype), torch.empty(width, dtype=dtype)
    parameter, conv_state = torch.empty(heads), torch.empty(rows, width, kernel, dtype=dtype)
    states, lengths = torch.empty(rows, heads, 64, 128, dtype=state), torch.empty(rows, dtype=torch.int32)
    inputs = [conv_input, gate, dt, weight, bias, parameter, parameter, parameter, conv_state, states]
    outputs = [torch.empty(*lead, inner, dtype=dtype), conv_state, states]
    return plan(op_call("mamba2_conv_scan", [*inputs, None if packed else lengths], outputs, {}, packed), device)


def entries(found: CallPlan) -> list[str]:
    return [launch.source.entry for launch in found.launches]


def test_few_rows_are_one_launch_without_workspace():
    found = plan_of()
    assert entries(found) == [STEP] and found.workspace_bytes == 0
    (launch,) = found.launches
    assert launch.cluster == 16 and launch.grid == (16, 8, 1)
    assert (launch.params.ssm.heads_per_group, launch.params.groups) == (16, 8)


@pytest.mark.parametrize(
    "change", [{"rows": 8}, {"heads": 24, "groups": 1}, {"device": ORIN}, {"rows": 64, "state": BF16}], ids=str
)
def test_larger_calls_and_groups_are_a_convolution_and_a_gated_update(change):
    found = plan_of(**change)
    assert entries(found) == [CONV, UPDATE]
    assert dict(found.launches[1].source.defines)["GATED"] == "1"


@pytest.mark.parametrize(
    "change, scans, access",
    [({}, ["wgmma"], 8), ({"device": ORIN}, ["mma"], 2), ({"dtype": F32}, ["mma"], 2), ({"gap": 4}, ["wgmma"], 4),
     ({"gap": 3}, ["mma"], 1), ({"rows": 1, "heads": 8, "time": 4096}, ["segments", "segments"], 8),
     ({"rows": 1, "heads": 8, "time": 4096, "device": ORIN}, ["registers", "registers"], 2)],
    ids=str,
)  # fmt: skip
def test_several_tokens_are_a_convolution_and_a_gated_scan(change, scans, access):
    found = plan_of(**{"rows": 2, "time": 100, **change})
    assert entries(found) == [PROMPT, *(f"{SCAN}_{kernel}" for kernel in scans)]
    *states, outputs = found.launches[1:]
    assert dict(outputs.source.defines)["GATE_ACCESS"] == str(access)
    assert all(dict(launch.source.defines)["GATE_ACCESS"] == "0" for launch in states)
    heads = change.get("heads", 128)
    token = 2 * heads * 64 + 2 * 8 * 128 + heads + change.get("gap", 0)
    assert (outputs.params.gate_row, outputs.params.gate_token) == (change.get("time", 100) * token, token)
    assert (outputs.pointers["gate"].memory, outputs.pointers["gate"].index) == (Memory.INPUT, 1)


def test_parts_meet_in_the_workspace():
    found = plan_of(rows=8)
    conv, update = found.launches
    width, inner = 128 * 64 + 2 * 8 * 128, 128 * 64
    assert found.workspace_bytes == 8 * width * 2
    assert conv.pointers["y"].memory is update.pointers["x"].memory is Memory.WORKSPACE
    offsets = [update.pointers[name].offset for name in ("x", "B", "C")]
    assert offsets == [0, 2 * inner, 2 * (inner + 8 * 128)]
    assert (update.params.B_row, update.params.B_group) == (width, 128)
    assert update.pointers["gate"].index == 1 and update.params.gate_row == inner + width + 128
    assert conv.pointers["state_out"].index == 1 and update.pointers["state_out"].index == 2


def test_packed_rows_reach_every_launch():
    found = plan_of(rows=40, packed=PackedRows(20, 1))
    assert all({"rows.query_start_loc", "rows.state_indices"} <= set(launch.pointers) for launch in found.launches)
    assert plan_of(rows=3, packed=PackedRows(1, 1)).launches[0].pointers["ssm.rows.state_indices"].index == 1


def test_channels_that_are_no_groups_are_refused():
    with pytest.raises(UnsupportedError, match="check the split of the projection"):
        plan_of(short=8)


def test_widths_that_no_kernel_has_are_refused():
    with pytest.raises(UnsupportedError, match="kernel from 2 to 8"):
        plan_of(kernel=9)


def test_the_step_compiles_without_local_memory():
    source = next(source for source in sources() if source.entry == STEP)
    assert compile_kernel(source, "sm_90a").report.problem is None
