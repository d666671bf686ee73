"""Plans of one-token ``gated_delta_rule`` over states of 8 bits; needs no GPU."""

from __future__ import annotations

import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import KernelLaunch, OpCall
from hybridge.trt_plugins.kernels.catalog import plan
from tests.support.kernel_calls import H200, op_call


def call_of(rows: int, state: torch.dtype = torch.int8, time: int | None = None, value_size: int = 128) -> OpCall:
    lead, bf16 = (rows, time) if time else (rows,), torch.bfloat16
    q, v = torch.empty(*lead, 16, 128, dtype=bf16), torch.empty(*lead, 32, value_size, dtype=bf16)
    g, beta = torch.empty(*lead, 32, 1), torch.empty(*lead, 32, dtype=bf16)
    states, scales = torch.empty(rows, 32, 128, value_size, dtype=state), torch.empty(rows, 32, value_size)
    inputs = [q, q, v, g, beta, states, scales, torch.empty(rows, dtype=torch.int32)]
    return op_call("gated_delta_rule_8bit", inputs, [v, states, scales], {})


def launch_of(call: OpCall) -> KernelLaunch:
    (launch,) = plan(call, H200).launches
    return launch


@pytest.mark.parametrize(("state", "name"), [(torch.int8, "signed char"), (torch.uint8, "E4m3")])
def test_a_scale_of_each_column_is_behind_the_state(state: torch.dtype, name: str) -> None:
    launch = launch_of(call_of(64, state))
    assert dict(launch.source.defines)["STATE_T"] == name
    assert launch.params.scales_slot == 32 * 128 and launch.params.decode.values_per_key == 2
    assert launch.pointers["state_scales"].index == 6 and launch.pointers["state_scales_out"].index == 2


@pytest.mark.parametrize(
    ("rows", "value_size", "lanes", "grid"),
    [(1, 128, "4", (8, 16, 1)), (64, 128, "8", (4, 16, 64)), (64, 40, "4", (4, 16, 64)), (64, 8, "4", (2, 16, 64))],
)
def test_blocks_are_smaller_where_states_are_few_or_narrow(
    rows: int, value_size: int, lanes: str, grid: tuple[int, ...]
) -> None:
    launch = launch_of(call_of(rows, value_size=value_size))
    assert (dict(launch.source.defines)["COLUMN_LANES"], launch.grid) == (lanes, grid)


def test_refuses_prompts() -> None:
    with pytest.raises(UnsupportedError, match="expected one token per row, found 5"):
        plan(call_of(2, time=5), H200)
