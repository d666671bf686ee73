"""Plans of the recurrent operators over states with rings, in every form, made without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.call import CallPlan, Memory, OpCall
from hybridge.trt_plugins.kernels.catalog import plan, sources
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.draft_rows import LONGER_ROWS
from hybridge.trt_plugins.plugins.kernel_calls import kernel_call, plugin_plan
from hybridge.trt_plugins.spec import TensorSpec
from tests.support.kernel_calls import H200, ORIN

SIZES = {"batch": 4, "heads": 8, "head_dim": 64, "groups": 2, "state_size": 128}
SIZES |= {"key_heads": 2, "value_heads": 4, "key_size": 128, "value_size": 128, "decay_size": 1}
SIZES |= {"rows": 4, "row_bounds": 5, "num_slots": 9, "draft_slots": 3}
OPERATORS = ("update_ssm_state_ring", "gated_delta_rule_ring")
COUNT = "count_ring_tokens"


def call_of(op: str, version: int, tokens: int, dtype: DType = DType.BFLOAT16) -> OpCall:
    """A call of four rows of at most ``tokens`` tokens."""
    spec, sizes = spec_of(op, version), {**SIZES, "time": tokens, "tokens": 3 + tokens}
    types: dict[str, DType] = {"T": dtype, "S": DType.FLOAT32, "U": DType.FLOAT32, "V": DType.FLOAT32}

    def layout(tensor: TensorSpec) -> TensorLayout:
        kind = tensor.dtype if isinstance(tensor.dtype, DType) else types[tensor.dtype]
        return TensorLayout.contiguous(
            kind, tuple(d if isinstance(d, int) else sizes[d] for d in tensor.dims_for(True))
        )

    inputs, outputs = (tuple(map(layout, tensors)) for tensors in (spec.inputs, spec.outputs))
    return kernel_call(spec, spec.complete_attributes({}), inputs, outputs)


def entries(found: CallPlan) -> list[str]:
    return [launch.source.entry for launch in found.launches]


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 70])
def test_pointers_are_those_of_the_inputs_by_name(op: str, version: int, tokens: int) -> None:
    spec = spec_of(op, version)
    found = plugin_plan(spec, plan(call_of(op, version, tokens), H200))
    assert entries(found)[0] == op and entries(found)[-1] == COUNT
    for launch in found.launches:
        for field, source in launch.pointers.items():
            name = field.split(".")[-1]
            if source.memory is Memory.INPUT:
                expected = {name, f"ring_{name}", "num_accepted_tokens" if name == "num_accepted" else name}
                assert spec.inputs[source.index].name in expected
            elif source.memory is Memory.OUTPUT:
                expected = {name, "ring_lengths_out"} if launch.source.entry == COUNT else {name}
                assert spec.outputs[source.index].name in expected


@pytest.mark.parametrize("op", OPERATORS)
def test_single_tokens_run_no_kernel_of_the_plain_operator(op: str) -> None:
    for version in (1, 2):
        found = plan(call_of(op, version, 1), H200)
        assert entries(found) == [op, COUNT]
        assert [launch.params.most_added for launch in found.launches] == [1, 1]
    assert not plan(call_of(op, 2, 1), ORIN).launches[0].overlap


@pytest.mark.parametrize("op", OPERATORS)
def test_prompts_follow_the_flush_of_their_rings(op: str) -> None:
    dense, packed, drafts = (plan(call_of(op, version, 70), H200) for version in (1, 2, 3))
    added: list[Any] = [
        (p.launches[0].params.most_added, p.launches[-1].params.most_added) for p in (dense, packed, drafts)
    ]
    assert added == [(0, 0), (1, 1), (0, 0)]
    for launch in packed.launches[1:-1]:
        assert (launch.params.rows.part, launch.params.rows.draft_slots) == (LONGER_ROWS, 1)
        assert "rows.num_accepted" not in launch.pointers
    assert drafts.launches[0].params.decode.rows.draft_slots == SIZES["draft_slots"]
    assert all(
        launch.params.flushes_empty == 0 for launch in (dense.launches[0], packed.launches[0], drafts.launches[0])
    )


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32])
def test_usual_sizes_run_kernels_that_are_compiled_and_checked(op: str, dtype: DType) -> None:
    known = set(sources())
    for version in (1, 2):
        assert {launch.source for launch in plan(call_of(op, version, 1, dtype), H200).launches} <= known
