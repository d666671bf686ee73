"""Checks of candidate tokens that leave the state alone, and advances of it, against the recurrences in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from artifact.bindings import BATCH, SEQ
from runtime.engines.onnxruntime.fixed_axes import fix_axes
from runtime.engines.onnxruntime.graph_edit import Inserter, remove_dead_code
from runtime.engines.onnxruntime.held_states import ACCEPTED, HeldState, advance_model, advanced_output
from runtime.engines.onnxruntime.kernels import quiet_options
from runtime.engines.onnxruntime.replay_bodies import MOST_REPLAYED, REPLAY_BODIES
from tests.ops.cases import conv_case, delta_case, ssm_case
from tests.ops.oracle import conv_step_loop, delta_step_loop, relative_error, ssm_step_loop
from tests.runtime.onnxruntime.op_graphs import KERNELS, op_model

CASES: dict[str, tuple[str, Callable, Callable, dict[str, Any]]] = {
    "conv": ("causal_conv1d", conv_case, partial(conv_step_loop, activation="silu"), {"activation": "silu"}),
    "ssm": ("update_ssm_state", ssm_case, ssm_step_loop, {}),
    "ssm, all or nothing": ("update_ssm_state", partial(ssm_case, adversarial=True), ssm_step_loop, {}),
    "delta": ("gated_delta_rule", delta_case, delta_step_loop, {}),
    "delta, alike": ("gated_delta_rule", partial(delta_case, adversarial=True), delta_step_loop, {}),
}
STATES = {"causal_conv1d": "conv_state", "update_ssm_state": "state", "gated_delta_rule": "state"}


def held_model(op: str, case: Any, kernels: Any, count: int, **attributes: Any) -> tuple[ir.Model, HeldState]:
    """A graph of one row whose outputs are y and what is kept."""
    model = op_model(op, case, **attributes)
    fix_axes(model, {BATCH: 1, SEQ: count})
    (node,) = model.graph
    found = REPLAY_BODIES[op](node, Inserter(model.graph, node), kernels, count)
    assert found is not None
    pool = next(value for value in model.graph.inputs if value.name == STATES[op])
    pool.shape = ir.Shape(found.state_shape)
    insert = Inserter(model.graph, node)
    outputs = [insert.op("Identity", value) for value in (found.y, *(kept.value for kept in found.kept))]
    model.graph.outputs[:] = []
    names = ["y", *(f"kept_{index}" for index in range(len(found.kept)))]
    for name, value in zip(names, outputs, strict=True):
        value.name, value.type = name, pool.type
        model.graph.outputs.append(value)
    node.outputs[0].name = node.outputs[1].name = None
    remove_dead_code(model)
    for value in [value for value in model.graph.inputs if not value.uses()]:
        model.graph.inputs.remove(value)  # the lengths
    kept = tuple((name, part.shape) for name, part in zip(names[1:], found.kept, strict=True))
    return model, HeldState(op, str(pool.name), found.state_shape, kept)


def run(model: ir.Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    proto = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(proto, quiet_options(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    wanted = {value.name for value in session.get_inputs()}
    return dict(zip(names, session.run(names, {k: v for k, v in feeds.items() if k in wanted}), strict=True))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("count", [1, 2, 5, MOST_REPLAYED])
@pytest.mark.parametrize("name", CASES)
def test_tokens_and_states_are_those_of_the_recurrence(name: str, count: int, kernels: str) -> None:
    op, make, loop, attributes = CASES[name]
    case = make((count,), count, seed=count)
    model, held = held_model(op, case, KERNELS[kernels], count, **attributes)
    # Mamba2's states have their last two axes swapped here.
    swapped = op == "update_ssm_state"
    state = getattr(case, STATES[op])
    inner = (state.swapaxes(-1, -2) if swapped else state).reshape(held.shape).astype(np.float32)
    arrays = {field: np.float32(value) for field, value in vars(case).items() if value is not None}
    found = run(model, {**arrays, STATES[op]: inner})
    assert relative_error(found["y"], loop(case)[0]) < 2e-6
    for accepted in range(1, count + 1):
        kept = {key: found[key].reshape(1, count, -1)[:, :accepted] for key, _ in held.kept}
        after = run(advance_model([held]), {STATES[op]: inner, **kept})[advanced_output(STATES[op])]
        expected = loop(replace(case, context_lengths=np.array([accepted])))[1]
        after = after.reshape(expected.swapaxes(-1, -2).shape).swapaxes(-1, -2) if swapped else after
        assert relative_error(after.reshape(expected.shape), expected) < 3e-6


@pytest.mark.parametrize("family", ["Mamba2", "delta rule"])
def test_at_the_sizes_of_large_models_a_token_keeps_under_3_percent_of_the_states(family: str) -> None:
    """128 heads x 64 x 128 in 8 groups; 16 key and 32 value heads of 128. The convolution's part is counted on both
    sides."""
    case: Any
    if family == "Mamba2":
        op, case, channels = "update_ssm_state", ssm_case((2,), 2, 128, 8, 64, 128), 128 * 64 + 2 * 8 * 128
    else:
        op, case, channels = "gated_delta_rule", delta_case((2,), 2, 16, 32, 128, 128), 2 * 16 * 128 + 32 * 128
    kept = states = 0
    for name, each in ((op, case), ("causal_conv1d", conv_case((2,), 2, channels))):
        _, held = held_model(name, each, KERNELS["installed"], 2)
        kept, states = kept + held.numbers_of_token, states + int(np.prod(held.shape))
    assert 0.01 < kept / states < 0.03


def test_the_advancing_graph_takes_any_number_of_tokens() -> None:
    model = advance_model([HeldState("causal_conv1d", "pool", (1, 6, 4), (("kept", (6,)),))])
    shapes = {value.name: [str(size) for size in value.shape.dims] for value in model.graph.inputs}
    assert shapes == {"pool": ["1", "6", "4"], "kept": ["1", ACCEPTED, "6"]}
