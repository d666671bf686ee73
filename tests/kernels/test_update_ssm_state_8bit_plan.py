"""Plans of the state update with 8 bits; needs no GPU."""

from __future__ import annotations

import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import KernelLaunch, OpCall
from hybridge.trt_plugins.kernels.ops.update_ssm_state_8bit import plan_8bit
from tests.support.kernel_calls import H200, op_call


def call_of(rows: int, state: torch.dtype = torch.int8, time: int | None = None) -> OpCall:
    lead, bf16 = (rows, time) if time else (rows,), torch.bfloat16
    x, B = torch.empty(*lead, 128, 64, dtype=bf16), torch.empty(*lead, 8, 128, dtype=bf16)
    heads, states = torch.empty(128), torch.empty(rows, 128, 64, 128, dtype=state)
    dt, lengths = torch.empty(*lead, 128, dtype=bf16), torch.empty(rows, dtype=torch.int32)
    return op_call("update_ssm_state", [x, heads, B, B, heads, dt, heads, states, lengths], [x, states], {})


def launch_of(rows: int, state: torch.dtype) -> KernelLaunch:
    (launch,) = plan_8bit(call_of(rows, state), H200).launches
    return launch


both = pytest.mark.parametrize("state, name", [(torch.int8, "signed char"), (torch.uint8, "E4m3")])


@both
def test_16_elements_an_access_and_a_factor_a_row(state, name):
    launch = launch_of(8, state)
    macros = dict(launch.source.defines)
    assert (macros["STATE_T"], macros["STATE_ACCESS"], macros["LANES"]) == (name, "16", "8")
    assert launch.params.scale_slot == launch.params.scale_out_slot == 128 * 64
    assert launch.pointers["scale"].index == 9 and launch.pointers["scale_out"].index == 2


@both
def test_threads_take_more_rows_where_blocks_are_many(state, name):
    assert [dict(launch_of(rows, state).source.defines)["PASSES"] for rows in (1, 8, 64)] == ["1", "8", "8"]


def test_refuses_other_states_and_prompts():
    for call in (call_of(2, torch.bfloat16), call_of(2, time=5)):
        with pytest.raises(UnsupportedError, match=r"expected a state of int8 or of e4m3 .* and one token per row"):
            plan_8bit(call, H200)
