"""Plugins of packed and of speculative operators, with real device pointers, against the float64 reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.catalog import dense_operators
from hybridge.trt_plugins.plugins.registration import PluginRegistration
from hybridge.trt_plugins.specs.packed import PACKED_VERSION, is_pool
from hybridge.trt_plugins.specs.speculative import SPECULATIVE_VERSION, is_speculative
from tests.plugins.test_enqueue_gpu import ATTRIBUTES, BF16, F32, LAUNCHES, SIZES, TOLERANCE
from tests.support.plugin_calls import PluginCall, created_plugin, packed_plugin_call

pytestmark = pytest.mark.gpu

MOST = {"tokens": 300, "rows": 8, "row_bounds": 9}
# Tokens of each row; the row before the last is a padding row.
STEPS = {"decode": (1, 1, 1, 1, 1), "mixed": (1, 65, 1, 1, 7), "prompt": (130, 1, 3)}
DRAFTS, DRAFT_STEPS = 4, {"draft tokens": (1, 4, 2, 1, 3), "beside a prompt": (4, 66, 1, 2)}
FORMS = [
    *((op, PACKED_VERSION, step) for op in dense_operators() for step in STEPS),
    *((op, SPECULATIVE_VERSION, step) for op in dense_operators() if op != "mamba2_conv_scan" for step in DRAFT_STEPS),
]


@pytest.fixture
def registration(trt: Any) -> PluginRegistration:
    return PluginRegistration(trt)


def call_of(op: str, version: int, step: str, dtype: torch.dtype) -> PluginCall:
    torch.manual_seed(0)
    counts = {**STEPS, **DRAFT_STEPS}[step]
    rows, columns = len(counts), DRAFTS if version == SPECULATIVE_VERSION else 1
    slots = torch.randperm(rows * columns + 2)[: rows * columns].view(rows, columns)
    slots[rows - 2] = -1
    accepted = [1 + row % columns for row in range(rows)]
    places = slots if columns > 1 else slots[:, 0]
    return packed_plugin_call(spec_of(op, version), SIZES, dtype, counts, places, accepted, ATTRIBUTES[op])


def check(call: PluginCall, before: list[torch.Tensor], expected: tuple[torch.Tensor, ...], tolerance: float) -> None:
    """Tokens of rows that take part; pools: the slots that the reference has changed, and all others bit for bit."""
    torch.cuda.synchronize()
    bounds = call.inputs[call.spec.input_index("query_start_loc")].tolist()
    slots = call.inputs[call.spec.input_index("state_indices")].reshape(len(bounds) - 1, -1)
    live = [token for row in range(len(slots)) if slots[row, 0] >= 0 for token in range(bounds[row], bounds[row + 1])]
    for output, found, wanted in zip(call.spec.outputs, call.outputs, expected, strict=True):
        if is_pool(output):
            old = before[call.spec.output_source(output)]
            same = [
                bool(torch.equal(a.nan_to_num(7.0), b.double().nan_to_num(7.0)))
                for a, b in zip(wanted, old, strict=True)
            ]
            changed = [slot for slot, kept in enumerate(same) if not kept]
            kept = [slot for slot, kept in enumerate(same) if kept]
            assert changed and found[kept].cpu().view(torch.uint8).equal(old[kept].cpu().view(torch.uint8))
            found, wanted = found[changed], wanted[changed]
        else:
            found, wanted = found[live], wanted[live]
        error = (found.double() - wanted).norm() / wanted.norm()
        assert error <= tolerance, f"{output.name}: relative error {error:.3g}"


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("op", "version", "step"), FORMS)
def test_results(
    trt: Any, registration: PluginRegistration, op: str, version: int, step: str, dtype: torch.dtype
) -> None:
    call = call_of(op, version, step, dtype)
    assert is_speculative(call.spec) == (version == SPECULATIVE_VERSION)
    plugin = created_plugin(trt, registration, call, MOST)
    expected, before = call.reference(), [tensor.clone() for tensor in call.inputs]
    torch.cuda.synchronize()
    descs = call.descs(trt)
    plugin.on_shape_change(*descs)
    plugin.enqueue(*descs, *call.addresses(), torch.cuda.current_stream().cuda_stream)
    tolerance = TOLERANCE[dtype] * (1 if dtype is F32 else LAUNCHES.get(op, 1))
    check(call, before, expected, tolerance)


@pytest.mark.parametrize("op", [op for op in dense_operators() if op != "mamba2_conv_scan"])
def test_deferred_states_advance_by_the_accepted_tokens(trt: Any, registration: PluginRegistration, op: str) -> None:
    """The plugins of an engine that advances: a row of its tokens whose slot is in the column of the last right one."""
    counts, right, columns = (4, 1, 2, 3), (2, 1, 2, 3), DRAFTS + 1
    slots = torch.full((len(counts), columns), -1, dtype=torch.int64)
    slots[range(len(counts)), [count - 1 for count in right]] = torch.tensor([5, 0, -1, 2])
    torch.manual_seed(0)
    call = packed_plugin_call(spec_of(op, SPECULATIVE_VERSION), SIZES, BF16, counts, slots, right, ATTRIBUTES[op])
    plugin = created_plugin(trt, registration, call, MOST)
    pool = next(index for index, tensor in enumerate(call.spec.inputs) if is_pool(tensor))
    after = next(index for index, tensor in enumerate(call.spec.outputs) if is_pool(tensor))
    expected, before, descs = call.reference()[after], call.inputs[pool].clone(), call.descs(trt)
    plugin.on_shape_change(*descs)
    torch.cuda.synchronize()
    plugin.enqueue(*descs, *call.addresses(), torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    found = call.outputs[after]
    for slot in range(len(found)):
        if slot not in (5, 0, 2):
            assert torch.equal(found[slot].cpu().view(torch.uint8), before[slot].cpu().view(torch.uint8)), slot
            continue
        error = (found[slot].double() - expected[slot]).norm() / expected[slot].norm()
        assert error <= TOLERANCE[BF16], f"slot {slot}: relative error {error:.3g}"


@pytest.mark.parametrize("op", dense_operators())
def test_a_captured_step_replays_with_other_rows(trt: Any, registration: PluginRegistration, op: str) -> None:
    """Where rows begin and which slots they have is read on the device: a graph serves every step of its shapes."""
    call = call_of(op, PACKED_VERSION, "decode", BF16)
    plugin = created_plugin(trt, registration, call, MOST)
    stream, graph, descs = torch.cuda.Stream(), torch.cuda.CUDAGraph(), call.descs(trt)
    plugin.on_shape_change(*descs)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        plugin.enqueue(*descs, *call.addresses(), torch.cuda.current_stream().cuda_stream)
    slots = call.inputs[call.spec.input_index("state_indices")]
    for _ in range(2):
        slots.copy_(slots.roll(1))
        expected, before = call.reference(), [tensor.clone() for tensor in call.inputs]
        graph.replay()
        check(call, before, expected, TOLERANCE[BF16] * LAUNCHES.get(op, 1))
