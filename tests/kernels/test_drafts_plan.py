"""Which kernels run rows of draft tokens; needs no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels import catalog
from hybridge.trt_plugins.kernels.call import CallPlan, Memory, OpCall, PackedRows
from tests.support.kernel_calls import H200, op_call

ROWS, DRAFTS = 3, 5


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def conv_call(tokens: int, rows: PackedRows) -> OpCall:
    x, pool = meta(tokens, 256), meta(20, 256, 4)
    return op_call("causal_conv1d", [x, meta(256, 1, 4), None, pool, None], [x, pool], {}, rows)


def ssm_call(tokens: int, rows: PackedRows, state: torch.dtype = torch.float32) -> OpCall:
    x, group, pool = meta(tokens, 6, 64), meta(tokens, 2, 128), meta(20, 6, 64, 128, dtype=state)
    scalars = meta(6, dtype=torch.float32)
    inputs = [x, scalars, group, group, scalars, meta(tokens, 6), scalars, pool, None]
    return op_call("update_ssm_state", inputs, [x, pool], {}, rows)


def delta_call(tokens: int, rows: PackedRows, **attributes: object) -> OpCall:
    decays = 128 if attributes else 1
    q, v, pool = meta(tokens, 2, 128), meta(tokens, 4, 128), meta(20, 4, 128, 128, dtype=torch.float32)
    g = meta(tokens, 4, decays, dtype=torch.float32)
    return op_call("gated_delta_rule", [q, q, v, g, meta(tokens, 4), pool, None], [v, pool], attributes, rows)


def scan_call(tokens: int, rows: PackedRows) -> OpCall:
    x, group, pool = meta(tokens, 264), meta(tokens, 1, 16), meta(20, 1, 264, 16, dtype=torch.float32)
    scalars, A = meta(264, dtype=torch.float32), meta(264, 16, dtype=torch.float32)
    return op_call("selective_scan", [x, A, group, group, scalars, x, scalars, pool, None], [x, pool], {}, rows)


CALLS = {
    "causal_conv1d": conv_call,
    "update_ssm_state": ssm_call,
    "gated_delta_rule": delta_call,
    "selective_scan": scan_call,
}
OPS = pytest.mark.parametrize("op", CALLS)


def planned(op: str, longest: int, draft_slots: int = DRAFTS) -> CallPlan:
    call = CALLS[op](ROWS * longest, PackedRows(ROWS, longest, draft_slots=draft_slots))
    return catalog.plan(call, H200)


@OPS
@pytest.mark.parametrize("longest", [1, 2, DRAFTS])
def test_draft_rows_are_one_launch(op, longest):
    (launch,) = planned(op, longest).launches
    rows = launch.params.rows
    assert (rows.rows, rows.draft_slots, rows.part) == (ROWS, DRAFTS, 0)
    places = {name: source for name, source in launch.pointers.items() if name.startswith("rows.")}
    assert {name: (s.memory, s.index) for name, s in places.items()} == {
        "rows.query_start_loc": (Memory.PACKED, 0),
        "rows.state_indices": (Memory.PACKED, 1),
        "rows.num_accepted": (Memory.PACKED, 2),
    }


@OPS
def test_longer_rows_run_in_the_packed_form(op):
    plan = planned(op, 300)
    alone = planned(op, 300, draft_slots=0)
    first, *rest = plan.launches
    assert first.params.rows.part == 1
    assert [launch.source for launch in rest] == [launch.source for launch in alone.launches]
    assert all((launch.params.rows.part, launch.params.rows.draft_slots) == (2, DRAFTS) for launch in rest)
    assert all("rows.num_accepted" in launch.pointers for launch in rest)
    assert plan.workspace_bytes == alone.workspace_bytes
    assert all(launch.params.rows.part == launch.params.rows.draft_slots == 0 for launch in alone.launches)


@OPS
def test_draft_tokens_need_their_slots(op):
    rows = PackedRows(ROWS, 2, has_state_indices=False, draft_slots=DRAFTS)
    with pytest.raises(UnsupportedError, match="expected state_indices of draft tokens, found none"):
        catalog.plan(CALLS[op](6, rows), H200)


def test_states_of_8_bits_are_refused():
    call = ssm_call(6, PackedRows(ROWS, 2, draft_slots=DRAFTS), torch.int8)
    with pytest.raises(UnsupportedError, match="draft tokens with states of 16 or 32 bits, found int8"):
        catalog.plan(call, H200)


def test_joined_mixers_are_refused():
    rows, scalars = PackedRows(ROWS, 2, draft_slots=DRAFTS), meta(6, dtype=torch.float32)
    inner, wide, conv_pool = meta(6, 384), meta(6, 896), meta(20, 896, 4)
    pool = meta(20, 6, 64, 128, dtype=torch.float32)
    inputs = [wide, inner, meta(6, 6), meta(896, 1, 4), None, scalars, scalars, scalars, conv_pool, pool, None]
    call = op_call("mamba2_conv_scan", inputs, [inner, conv_pool, pool], {}, rows)
    with pytest.raises(UnsupportedError, match="found draft tokens: run its parts"):
        catalog.plan(call, H200)
    assert catalog.plan(replace(call, packed=PackedRows(ROWS, 2)), H200).launches
