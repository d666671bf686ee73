"""Checks of draft tokens that leave the state alone, and advances of it, against the recurrences in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from hybridge.artifact.bindings import BATCH, SEQ
from hybridge.artifact.paged import ROWS
from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN
from hybridge.runtime.engines.onnxruntime.deferred_states import ACCEPTED, DeferredState, advanced_output, replay_model
from hybridge.runtime.engines.onnxruntime.engine_inputs import MOST_REPLAYED, decay_feeds
from hybridge.runtime.engines.onnxruntime.fixed_axes import fix_axes
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, remove_dead_code
from hybridge.runtime.engines.onnxruntime.kernels import quiet_options
from hybridge.runtime.engines.onnxruntime.replay_bodies import REPLAY_BODIES
from hybridge.runtime.engines.onnxruntime.session import register_cpu_library
from tests.ops.cases import conv_case, delta_case, scan_case, ssm_case
from tests.ops.oracle import conv_step_loop, delta_step_loop, relative_error, scan_step_loop, ssm_step_loop
from tests.runtime.onnxruntime.op_graphs import KERNELS, NEEDS_LINEAR_ATTENTION, op_model

SCAN = "selective_scan"
CHANNELS = {"decay": "key_channel"}
CASES: dict[str, tuple[str, Callable, Callable, dict[str, Any]]] = {
    "conv": ("causal_conv1d", conv_case, partial(conv_step_loop, activation="silu"), {"activation": "silu"}),
    "ssm": ("update_ssm_state", ssm_case, ssm_step_loop, {}),
    "ssm, all or nothing": ("update_ssm_state", partial(ssm_case, adversarial=True), ssm_step_loop, {}),
    "delta": ("gated_delta_rule", delta_case, delta_step_loop, {}),
    "delta, alike": ("gated_delta_rule", partial(delta_case, adversarial=True), delta_step_loop, {}),
    "channels": ("gated_delta_rule", partial(delta_case, decay="key_channel"), delta_step_loop, CHANNELS),
    "scan": ("selective_scan", scan_case, scan_step_loop, {}),
}
STATES = {"causal_conv1d": "conv_state", **dict.fromkeys(("update_ssm_state", "gated_delta_rule", SCAN), "state")}
# Standard operators alone have no delta rule with decays of each key channel.
FORMS = [
    pytest.param(name, kernels, marks=NEEDS_LINEAR_ATTENTION if (name, kernels) == ("channels", "installed") else ())
    for name in CASES
    for kernels in KERNELS
    if (name, kernels) != ("channels", "standard")
]


def deferred_model(
    op: str, case: Any, kernels: Any, count: int | None, **attributes: Any
) -> tuple[ir.Model, DeferredState]:
    """A graph of one row, or where ``count`` is None of any rows and tokens; its outputs are y and what is stored."""
    model = op_model(op, case, **attributes)
    if count is not None:
        fix_axes(model, {BATCH: 1, SEQ: count})
    (node,) = model.graph
    found = REPLAY_BODIES[op](node, Inserter(model.graph, node), kernels, count)
    assert found is not None
    pool = next(value for value in model.graph.inputs if value.name == STATES[op])
    pool.shape = ir.Shape([BATCH if count is None else 1, *found.state_shape])
    insert = Inserter(model.graph, node)
    outputs = [insert.op("Identity", value) for value in (found.y, *(stored.value for stored in found.stored))]
    model.graph.outputs[:] = []
    names = ["y", *(f"stored_{index}" for index in range(len(found.stored)))]
    for name, value in zip(names, outputs, strict=True):
        value.name, value.type = name, pool.type
        model.graph.outputs.append(value)
    node.outputs[0].name = node.outputs[1].name = None
    remove_dead_code(model)
    for value in [value for value in model.graph.inputs if not value.uses()]:
        model.graph.inputs.remove(value)  # the lengths
    stored = tuple((name, part.shape) for name, part in zip(names[1:], found.stored, strict=True))
    return model, DeferredState(op, str(pool.name), found.state_shape, stored, weights=found.weights)


def run(model: ir.Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    proto = ir.to_proto(model).SerializeToString()
    options = quiet_options()
    if CPU_DOMAIN in model.graph.opset_imports:
        register_cpu_library(options)
    session = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    inputs = {value.name for value in session.get_inputs()}
    return dict(zip(names, session.run(names, {k: v for k, v in feeds.items() if k in inputs}), strict=True))


@pytest.mark.parametrize(("name", "kernels"), FORMS)
@pytest.mark.parametrize("count", [1, 2, 5, MOST_REPLAYED])
def test_tokens_and_states_are_those_of_the_recurrence(name: str, count: int, kernels: str) -> None:
    op, make, loop, attributes = CASES[name]
    case = make((count,), count, seed=count)
    model, deferred = deferred_model(op, case, KERNELS[kernels], count, **attributes)
    inner = engine_order(op, getattr(case, STATES[op])).astype(np.float32)
    arrays = {field: np.float32(value) for field, value in vars(case).items() if value is not None}
    found = run(model, {**arrays, STATES[op]: inner})
    assert relative_error(found["y"], loop(case)[0]) < 2e-6
    for accepted in range(1, count + 1):
        stored = {key: found[key][:, :accepted] for key, _ in deferred.stored}
        feeds = {STATES[op]: inner, **stored, ACCEPTED: np.array([accepted])}
        after = run(replay_model([deferred], KERNELS[kernels]), feeds)[advanced_output(STATES[op])]
        expected = loop(replace(case, context_lengths=np.array([accepted])))[1]
        assert relative_error(engine_order(op, after), expected) < 3e-6


def engine_order(op: str, states: np.ndarray) -> np.ndarray:
    """Mamba's states have their last two axes swapped in the engine; and back."""
    return np.ascontiguousarray(states.swapaxes(-1, -2)) if op in ("update_ssm_state", SCAN) else states


@pytest.mark.parametrize(("name", "kernels"), FORMS)
@pytest.mark.parametrize("counts", [(1, 1), (5, 1, 3), (2, MOST_REPLAYED, 1, 7)], ids=str)
def test_rows_of_any_lengths_run_and_advance_together(name: str, counts: tuple[int, ...], kernels: str) -> None:
    """The graph gets the numbers of rows and tokens; each row advances by a different number of tokens."""
    op, make, loop, attributes = CASES[name]
    time = max(counts)
    case = make(counts, time, seed=time)
    model, deferred = deferred_model(op, case, KERNELS[kernels], None, **attributes)
    inner = engine_order(op, getattr(case, STATES[op])).astype(np.float32)
    inside = np.arange(time) < np.array(counts)[:, None]
    arrays = {field: np.float32(value) for field, value in vars(case).items() if value is not None}
    feeds = {field: value for field, value in arrays.items() if field != STATES[op]}
    # What fills up shorter rows reaches nothing but its own place.
    for field in ("x", "B", "C", "dt", "q", "k", "v", "g", "beta"):
        if field in feeds:
            feeds[field][~inside] = 7.0 if field not in ("g", "dt") else -7.0
    found = run(model, {**feeds, STATES[op]: inner, **decay_feeds(time)})
    assert relative_error(found["y"][inside], loop(case)[0].reshape(found["y"].shape)[inside]) < 2e-6
    rng = np.random.default_rng(time)
    for _ in range(3):
        accepted = rng.integers(0, np.array(counts) + 1)
        stored = {}
        for key, _ in deferred.stored:
            stored[key] = found[key].copy()
            stored[key][np.arange(time) >= accepted[:, None]] = 0
        after = run(replay_model([deferred], KERNELS[kernels]), {STATES[op]: inner, **stored, ACCEPTED: accepted})
        moved = after[advanced_output(STATES[op])]
        np.testing.assert_array_equal(moved[accepted == 0], inner[accepted == 0])
        expected = loop(replace(case, context_lengths=accepted))[1]
        for row, found_row in enumerate(engine_order(op, moved)):
            assert relative_error(found_row, expected[row]) < 3e-6


def test_computed_decays_are_not_replayed() -> None:
    """The graph that advances states gets weights and stored values of tokens, and nothing else."""
    model = op_model(SCAN, scan_case((2,), 2, seed=0))
    (node,) = model.graph
    assert REPLAY_BODIES[SCAN](node, Inserter(model.graph, node), KERNELS["installed"], 2) is not None
    node.replace_input_with(1, Inserter(model.graph, node).op("Neg", node.inputs[1]))
    assert REPLAY_BODIES[SCAN](node, Inserter(model.graph, node), KERNELS["installed"], 2) is None


@pytest.mark.parametrize("family", ["Mamba2", "delta rule"])
def test_at_the_sizes_of_large_models_a_token_keeps_under_3_percent_of_the_states(family: str) -> None:
    """128 heads x 64 x 128 in 8 groups; 16 key and 32 value heads of 128. The convolution's part is counted on both
    sides."""
    case: Any
    if family == "Mamba2":
        op, case, channels = "update_ssm_state", ssm_case((2,), 2, 128, 8, 64, 128), 128 * 64 + 2 * 8 * 128
    else:
        op, case, channels = "gated_delta_rule", delta_case((2,), 2, 16, 32, 128, 128), 2 * 16 * 128 + 32 * 128
    stored = states = 0
    for name, each in ((op, case), ("causal_conv1d", conv_case((2,), 2, channels))):
        _, deferred = deferred_model(name, each, KERNELS["installed"], 2)
        stored, states = stored + deferred.token_bytes // 4, states + int(np.prod(deferred.shape))
    assert 0.01 < stored / states < 0.03


def test_the_advancing_graph_takes_any_number_of_rows_and_tokens() -> None:
    model = replay_model([DeferredState("causal_conv1d", "pool", (6, 4), (("stored", (6,)),))], KERNELS["installed"])
    shapes = {value.name: [str(size) for size in value.shape.dims] for value in model.graph.inputs}
    assert shapes == {"pool": [ROWS, "6", "4"], "stored": [ROWS, SEQ, "6"], ACCEPTED: [ROWS]}
