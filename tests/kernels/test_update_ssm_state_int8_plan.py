"""Plans of the int8 state update; needs no GPU."""

from __future__ import annotations

import pytest
import torch

from artifact.errors import UnsupportedError
from tests.support.kernel_calls import H200, op_call
from trt_plugins.kernels.call import KernelLaunch, OpCall
from trt_plugins.kernels.ops.update_ssm_state_int8 import plan_int8


def call_of(rows: int, state: torch.dtype = torch.int8, time: int | None = None) -> OpCall:
    lead, bf16 = (rows, time) if time else (rows,), torch.bfloat16
    x, B = torch.empty(*lead, 128, 64, dtype=bf16), torch.empty(*lead, 8, 128, dtype=bf16)
    heads, states = torch.empty(128), torch.empty(rows, 128, 64, 128, dtype=state)
    dt, lengths = torch.empty(*lead, 128, dtype=bf16), torch.empty(rows, dtype=torch.int32)
    return op_call("update_ssm_state", [x, heads, B, B, heads, dt, heads, states, lengths], [x, states], {})


def launch_of(rows: int) -> KernelLaunch:
    (launch,) = plan_int8(call_of(rows), H200).launches
    return launch


def test_16_elements_an_access_and_a_factor_a_row():
    launch = launch_of(8)
    macros = dict(launch.source.defines)
    assert (macros["STATE_T"], macros["STATE_ACCESS"], macros["LANES"]) == ("signed char", "16", "8")
    assert launch.params.scale_slot == launch.params.scale_out_slot == 128 * 64
    assert launch.pointers["scale"].index == 9 and launch.pointers["scale_out"].index == 2


def test_threads_take_more_rows_where_blocks_are_many():
    assert [dict(launch_of(rows).source.defines)["PASSES"] for rows in (1, 8, 64)] == ["1", "8", "8"]


def test_refuses_other_states_and_prompts():
    for call in (call_of(2, torch.bfloat16), call_of(2, time=5)):
        with pytest.raises(UnsupportedError, match="expected an int8 state and one token a row"):
            plan_int8(call, H200)
