"""Plans of one-token kernels over states with rings, made without a GPU."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, Memory, PackedRows
from hybridge.trt_plugins.kernels.catalog import sources
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.ring import plan_ring
from hybridge.trt_plugins.kernels.ops.ring_stream import LEAST_HEADS
from hybridge.trt_plugins.specs.ring import RINGS
from tests.support.kernel_calls import H200, ORIN, layout_of, op_call
from tests.support.ring_calls import STATE, RingCase, delta_case, ssm_case

BF16 = torch.bfloat16
ROWS = 16


def planned(case: RingCase, rows: PackedRows, gate: TensorLayout | None = None, traits=H200) -> CallPlan:
    inputs = case.token(range(ROWS), [0] * ROWS)
    y = torch.empty_like(inputs[0 if case.name == "update_ssm_state" else 2])
    return plan_ring(
        op_call(case.name, [*inputs, None], [y, inputs[STATE[case.name]]], case.attributes, rows), traits, gate
    )


def cases() -> dict[str, RingCase]:
    return {
        "mamba2": ssm_case(ROWS, 1, 8, 2, 64, 128, BF16, "cpu"),
        "delta rule": delta_case(ROWS, 1, 4, 2, 128, 128, BF16, "cpu"),
        "key channels": delta_case(ROWS, 1, 2, 2, 128, 128, BF16, "cpu", channels=True),
    }


@pytest.mark.parametrize("name", cases())
def test_usual_sizes_run_a_kernel_that_is_compiled_and_checked(name):
    case = cases()[name]
    (launch,) = planned(case, PackedRows(ROWS, 1)).launches
    assert launch.source in set(sources())
    assert math.prod(launch.grid) >= ROWS and launch.overlap
    assert not planned(case, PackedRows(ROWS, 1), traits=ORIN).launches[0].overlap
    # The ring follows the operator's own inputs, and its lengths come last.
    own = len(case.inputs) + 1
    ring = {launch.pointers[tensor.name].index - own for tensor in RINGS[case.name]}
    assert ring == {0, 1, 2} and launch.pointers["lengths"].index == own + 3
    assert launch.pointers["decode.rows.state_indices"].memory is Memory.PACKED


def test_a_gate_comes_last():
    gate = layout_of(torch.empty(ROWS, 8 * 64, dtype=BF16))
    (launch,) = planned(cases()["mamba2"], PackedRows(ROWS, 1), gate).launches
    assert launch.pointers["decode.gate"].index == 13
    assert launch.params.decode.gate_token == 8 * 64


@pytest.mark.parametrize("rows", [PackedRows(ROWS, 2), PackedRows(ROWS, 1, draft_slots=2), None], ids=str)
def test_only_packed_rows_of_one_token(rows):
    with pytest.raises(UnsupportedError, match="one token in each of packed rows"):
        planned(cases()["delta rule"], rows)


def test_states_of_8_bits_are_refused():
    case = cases()["mamba2"]
    case.state = case.state.to(torch.int8)
    with pytest.raises(UnsupportedError, match="expected a ring with states of 16 or 32 bits"):
        planned(case, PackedRows(ROWS, 1))


def test_other_operators_are_refused():
    call = op_call("gated_delta_rule", [*cases()["delta rule"].token(range(ROWS), [0] * ROWS), None], [], {})
    with pytest.raises(UnsupportedError, match="update_ssm_state or gated_delta_rule"):
        plan_ring(replace(call, spec=replace(call.spec, name="selective_scan")), H200)


def test_many_large_states_are_visited_by_blocks_that_stay():
    case, rows = cases()["delta rule"], PackedRows(ROWS, 1)
    few = replace(H200, multiprocessors=ROWS * 4 // LEAST_HEADS)
    plain, stays = (planned(case, rows, traits=traits).launches[0] for traits in (H200, few))
    assert stays.source.entry == plain.source.entry + "_stream" and stays.source in set(sources())
    assert stays.grid == (few.multiprocessors, 1, 1) and stays.shared_bytes <= few.shared_bytes
    assert stays.pointers == plain.pointers and bytes(stays.params) == bytes(plain.params)
    for other in (replace(few, capability=(8, 0)), replace(few, shared_bytes=101376)):
        assert planned(case, rows, traits=other).launches[0].source == plain.source
    for refused in (cases()["key channels"], delta_case(ROWS, 1, 4, 2, 128, 64, BF16, "cpu")):
        assert not planned(refused, rows, traits=few).launches[0].source.entry.endswith("_stream")
    case.state = case.state.to(BF16)
    assert planned(case, rows, traits=few).launches[0].source.entry == plain.source.entry
