"""Plans of the state update with 8 bits; needs no GPU."""

from __future__ import annotations

import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import KernelLaunch, OpCall
from hybridge.trt_plugins.kernels.catalog import plan
from tests.support.kernel_calls import H200, op_call


def call_of(rows: int, state: torch.dtype = torch.int8, time: int | None = None) -> OpCall:
    lead, bf16 = (rows, time) if time else (rows,), torch.bfloat16
    x, B = torch.empty(*lead, 128, 64, dtype=bf16), torch.empty(*lead, 8, 128, dtype=bf16)
    heads, states = torch.empty(128), torch.empty(rows, 128, 64, 128, dtype=state)
    dt, lengths, scales = (
        torch.empty(*lead, 128, dtype=bf16),
        torch.empty(rows, dtype=torch.int32),
        states[..., 0].float(),
    )
    inputs = [x, heads, B, B, heads, dt, heads, states, scales, lengths]
    return op_call("update_ssm_state_8bit", inputs, [x, states, scales], {})


def launch_of(rows: int, state: torch.dtype) -> KernelLaunch:
    (launch,) = plan(call_of(rows, state), H200).launches
    return launch


both = pytest.mark.parametrize("state, name", [(torch.int8, "signed char"), (torch.uint8, "E4m3")])


@both
def test_16_elements_an_access_and_a_factor_a_row(state, name):
    launch = launch_of(8, state)
    macros = dict(launch.source.defines)
    assert (macros["STATE_T"], macros["STATE_ACCESS"], macros["LANES"]) == (name, "16", "8")
    assert launch.params.scale_slot == launch.params.scale_out_slot == 128 * 64
    assert launch.pointers["scale"].index == 8 and launch.pointers["scale_out"].index == 2


@both
def test_threads_take_more_rows_where_blocks_are_many(state, name):
    assert [dict(launch_of(rows, state).source.defines)["PASSES"] for rows in (1, 8, 64)] == ["1", "8", "8"]


def test_refuses_prompts():
    with pytest.raises(UnsupportedError, match=r"expected one token per row, found 5"):
        plan(call_of(2, time=5), H200)
