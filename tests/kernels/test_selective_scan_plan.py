"""Which kernels run a ``selective_scan`` call; needs no GPU."""

from __future__ import annotations

import pytest
import torch

from hybridge.trt_plugins.kernels.call import CallPlan, PackedRows
from hybridge.trt_plugins.kernels.ops.selective_scan import plan
from tests.support.kernel_calls import H200, op_call

BF16 = torch.bfloat16


def planned(*lead: int, channels: int = 8192, state: torch.dtype = BF16, packed: PackedRows | None = None) -> CallPlan:
    x, group = torch.empty(*lead, channels, dtype=BF16), torch.empty(*lead, 1, 16, dtype=BF16)
    side, rows = torch.empty(channels), lead[0] if packed is None else 16
    states = torch.empty(rows, 1, channels, 16, dtype=state)
    lengths = torch.empty(rows, dtype=torch.int32) if packed is None else None
    inputs = [x, torch.empty(channels, 16), group, group, side, x, side, states, lengths]
    return plan(op_call("selective_scan", inputs, [torch.empty_like(x), states], {}, packed), H200)


@pytest.mark.parametrize(("rows", "state", "block_rows"), [(63, BF16, 8), (80, BF16, 10), (63, torch.float32, 8)])
def test_many_rows_of_one_token_share_blocks(rows, state, block_rows):
    """As many as make all blocks run at once, or fewer."""
    (launch,) = planned(rows, state=state).launches
    assert launch.source.file == "selective_scan/step_rows.cu"
    assert launch.params.block_rows == block_rows
    assert launch.grid[1:] == (1, -(-rows // block_rows))
    assert block_rows <= int(dict(launch.source.defines)["BLOCK_ROWS"])


def test_prompts_that_fill_the_gpu_are_not_cut():
    found = planned(8, 1024)
    (launch,) = found.launches
    assert (launch.params.chunks, launch.params.chunk_tokens, found.workspace_bytes) == (1, 1024, 0)
    assert launch.grid[2] == 8
    assert dict(launch.source.defines)["LANES"] == "2"
    assert dict(planned(1, 1024).launches[0].source.defines)["LANES"] == "4"


@pytest.mark.parametrize("packed", [None, PackedRows(2, 1000)])
def test_prompts_of_few_channels_are_cut_into_chunks(packed):
    """The first kernel computes the states of chunks, for which the workspace has a sum of time steps too."""
    found = planned(*((1700,) if packed else (2, 1000)), channels=96, packed=packed)
    states, outputs = found.launches
    chunks, tokens = outputs.params.chunks, outputs.params.chunk_tokens
    assert chunks == 7
    assert tokens % 32 == 0
    assert (chunks - 1) * tokens < 1000 <= chunks * tokens
    assert states.grid == outputs.grid == (3, 1, 2 * chunks)
    assert [dict(launch.source.defines)["ONLY_STATES"] for launch in found.launches] == ["1", "0"]
    assert found.workspace_bytes == 2 * chunks * 96 * (16 + 1) * 4


def test_short_prompts_are_one_chunk():
    assert planned(1, 255, channels=96).launches[0].params.chunks == 1
