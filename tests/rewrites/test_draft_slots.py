"""A plain graph with slots for draft tokens: a snapshot after each, or a check that leaves states as they are and
stores what advances them by any number of its tokens.

Both graphs run in ONNX Runtime with the operators' functions; the oracle is a float64 loop over the right tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.catalog import SPECULATIVE_OPS
from hybridge.trt_plugins.checks import check_op_nodes
from hybridge.trt_plugins.rewrites.draft_slots import DraftSlots, ReplayGraphs, with_replay, with_snapshots
from hybridge.trt_plugins.specs.packed import is_packed, is_pool
from hybridge.trt_plugins.value_types import node_attributes, operator_nodes
from tests.ops.oracle import (
    ConvCase,
    DeltaCase,
    SsmCase,
    conv_step_loop,
    delta_step_loop,
    relative_error,
    ssm_step_loop,
)
from tests.support.artifacts import ArtifactCache, Exported

ort = pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
pytest.importorskip("transformers", reason="needs the export extra (transformers)")
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels  # noqa: E402 (needs onnxruntime)
from hybridge.runtime.engines.onnxruntime.opset import lower_opset  # noqa: E402

DRAFTS, BLOCK, BLOCKS_OF_ROW, SLOTS = 3, 8, 2, 17
# Of each row: its tokens, of which the first has as many as a step takes, how many are right, and its slot.
LENGTHS, RIGHT, ROW_SLOTS = (DRAFTS + 1, 1, 3, 2), (4, 1, 1, 2), (7, 2, 0, 5)
ROWS, TOKENS = len(LENGTHS), sum(LENGTHS)
STARTS = np.array([0, *np.cumsum(LENGTHS)], np.int32)
FAMILIES: dict[str, dict[str, Any]] = {
    "nemotron_h": {"hybrid_override_pattern": "M*M"},
    "qwen3_next": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
}
LOOPS: dict[str, tuple[type, Any]] = {
    "causal_conv1d": (ConvCase, conv_step_loop),
    "update_ssm_state": (SsmCase, ssm_step_loop),
    "gated_delta_rule": (DeltaCase, delta_step_loop),
}


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request: pytest.FixtureRequest, artifacts: ArtifactCache) -> Exported:
    family = request.param
    return artifacts.get(family, "float32", FAMILIES[family], layout="paged")


@dataclass(frozen=True)
class Checked:
    """One artifact's own graph and those of a replay; what a check of random tokens was given and gave."""

    exported: Exported
    original: onnx.ModelProto
    graphs: ReplayGraphs
    feeds: dict[str, np.ndarray]
    found: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def checked(exported: Exported) -> Checked:
    original = onnx.load(str(exported.folder / "model.onnx"), load_external_data=False)
    graphs, feeds = with_replay(original, DRAFTS), step_feeds(exported.config)
    feeds["state_indices"] = table(DRAFTS + 2, [DRAFTS + 2] * ROWS)
    feeds["num_accepted_tokens"] = np.full(ROWS, DRAFTS + 2, np.int32)
    return Checked(exported, original, graphs, feeds, run(exported, graphs.check, feeds))


def step_feeds(config: RuntimeConfig) -> dict[str, np.ndarray]:
    """Random tokens at the begin of every row, in random pools, without what says which slots are theirs."""
    rng = np.random.default_rng(0)
    positions = np.concatenate([np.arange(n) for n in LENGTHS])
    first = np.repeat(np.arange(ROWS) * BLOCKS_OF_ROW * BLOCK, LENGTHS)
    feeds = {
        "input_ids": rng.integers(0, config.vocab_size, TOKENS),
        "positions": positions,
        "query_start_loc": STARTS,
        "seq_lens": np.array(LENGTHS, np.int32),
        "block_table": np.arange(ROWS * BLOCKS_OF_ROW, dtype=np.int32).reshape(ROWS, -1),
        "slot_mapping": (first + positions).astype(np.int32),
        "logits_indices": np.arange(TOKENS, dtype=np.int32),
    }
    sizes = {"num_blocks": ROWS * BLOCKS_OF_ROW, "block_size": BLOCK, "num_slots": SLOTS}
    for binding in config.bindings.states:
        feeds[binding.name] = rng.standard_normal(binding.resolve(**sizes)).astype(np.float32)
    return feeds


def table(columns: int, filled: list[int]) -> np.ndarray:
    """state_indices: the slot of each row in its column of ``filled``, counted from 1, and -1 in the others."""
    slots = np.full((ROWS, columns), -1, np.int32)
    slots[np.arange(ROWS), np.array(filled) - 1] = ROW_SLOTS
    return slots


def run(exported: Exported, model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output by name; ``feeds`` may have more than the inputs."""
    lowered = ir.from_proto(model)
    lower_opset(lowered, installed_kernels())
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(exported.folder))
    data = ir.to_proto(lowered).SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    given = {value.name: feeds[value.name] for value in session.get_inputs()}
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, given), strict=True))


def test_a_check_has_the_logits_of_a_step_with_snapshots(checked: Checked) -> None:
    """The same graph except for the outputs; snapshots are in slots that belong to no row."""
    slots = np.array([[own, *(8 + row * 2 + j % 2 for j in range(DRAFTS)), -1] for row, own in enumerate(ROW_SLOTS)])
    slots[:, 3] = -1
    feeds = checked.feeds | {"state_indices": slots.astype(np.int32), "num_accepted_tokens": np.ones(ROWS, np.int32)}
    found = run(checked.exported, with_snapshots(checked.original, DRAFTS), feeds)
    assert list(checked.found) == [*found, *checked.graphs.stored]
    np.testing.assert_allclose(checked.found["logits"], found["logits"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("replays", [False, True])
def test_the_interface_has_the_slots_and_every_function_its_form(checked: Checked, replays: bool) -> None:
    graph = checked.graphs.check if replays else with_snapshots(checked.original, DRAFTS)
    slots = DraftSlots(DRAFTS, replays)
    expected = slots.bindings(checked.exported.config.bindings)
    inputs = {
        v.name: tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim) for v in graph.graph.input
    }
    assert inputs == {binding.name: binding.shape for binding in expected.inputs}
    assert inputs["state_indices"] == ("rows", slots.columns) and inputs["num_accepted_tokens"] == ("rows",)
    assert [opset.version for opset in graph.opset_import if opset.domain == "trt_edgellm"] == [3]
    rows = ["query_start_loc", "state_indices", "num_accepted_tokens"]
    assert all(list(f.input)[-3:] == rows for f in graph.functions if f.name in LOOPS)
    check_op_nodes(graph)


def test_a_check_leaves_every_state_as_it_was(checked: Checked) -> None:
    for binding in checked.exported.config.bindings.states:
        if not binding.grows:
            assert np.array_equal(checked.found[str(binding.replaced_by)], checked.feeds[binding.name]), binding.name


def _shape(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    return tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)


def test_the_states_advance_by_the_right_tokens(checked: Checked) -> None:
    feeds = {name: checked.found[name] for name in checked.graphs.stored}
    feeds |= {
        name: checked.feeds[name] for name in checked.feeds if name not in ("state_indices", "num_accepted_tokens")
    }
    feeds |= {"state_indices": table(DRAFTS + 2, [*RIGHT]), "num_accepted_tokens": np.array(RIGHT, np.int32)}
    nodes = operator_nodes(checked.graphs.advance)
    constants = {name for node in nodes for name in node.input} - set(feeds)
    advanced = run(checked.exported, with_outputs(checked.graphs.advance, sorted(constants)), feeds)
    pools = {b.name: str(b.replaced_by) for b in checked.exported.config.bindings.states if not b.grows}
    assert set(advanced) == {*pools.values(), *constants}
    for node in nodes:
        pool = next(name for name in node.input if name in pools)
        after = advanced[pools[pool]]
        for row, slot in enumerate(ROW_SLOTS):
            tokens = slice(int(STARTS[row]), int(STARTS[row]) + RIGHT[row])
            expected = expected_state(node, {**advanced, **feeds}, tokens, slot)
            assert relative_error(after[slot], expected) < 1e-5, f"{node.name}, row {row}"
        others = [slot for slot in range(SLOTS) if slot not in ROW_SLOTS]
        assert np.array_equal(after[others], checked.feeds[pool][others])


def with_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """A copy of ``model`` that shows ``names``, which depend on weights alone, too."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    declared = {value.name: value for value in model.graph.value_info}
    for weight in model.graph.initializer:
        declared[weight.name] = onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
    shown.graph.output.extend(declared[name] for name in names)
    return shown


def expected_state(node: onnx.NodeProto, values: dict[str, np.ndarray], tokens: slice, slot: int) -> np.ndarray:
    """The state of ``slot`` after ``tokens``, which are one row."""
    case, loop = LOOPS[node.op_type]
    arrays = [*_wide(node, values, tokens, slot), np.array([tokens.stop - tokens.start])]
    known = loop.__code__.co_varnames[1 : loop.__code__.co_argcount]
    attributes = {name: value for name, value in node_attributes(node).items() if name in known}
    assert len(arrays) == len(fields(case))
    state: np.ndarray = loop(case(*arrays), **attributes)[1][0]
    return state


def _wide(node: onnx.NodeProto, values: dict[str, np.ndarray], tokens: slice, slot: int) -> Iterator[np.ndarray]:
    """The operator's tensors in float64 for a batch of one row, without those about rows."""
    for tensor, name in zip(SPECULATIVE_OPS[node.op_type].inputs, node.input, strict=True):
        if is_packed(tensor):
            yield values[name][None, tokens].astype(np.float64)
        elif is_pool(tensor):
            yield values[name][None, slot].astype(np.float64)
        elif name not in ("query_start_loc", "state_indices", "num_accepted_tokens"):
            yield values[name].astype(np.float64)


def test_an_advance_is_the_recurrent_operators_alone(checked: Checked) -> None:
    recurrent = [node.op_type for node in operator_nodes(checked.original) if node.op_type in LOOPS]
    advance = checked.graphs.advance
    assert sorted(node.op for node in check_op_nodes(advance)) == sorted(recurrent)
    assert {node.op_type for node in advance.graph.node} <= {*recurrent, "Cast"}
    rows = ["query_start_loc", "state_indices", "num_accepted_tokens"]
    assert [value.name for value in advance.graph.input[:3]] == rows


@pytest.mark.parametrize("options", [{}, {"layout": "paged"}], ids=str)
def test_a_graph_without_packed_recurrent_operators_is_refused(options: dict, artifacts: ArtifactCache) -> None:
    family = "llama" if options else "nemotron_h"
    folder = artifacts.get(family, "float32", FAMILIES.get(family, {}), **options).folder
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    for rewrite in (with_snapshots, with_replay):
        with pytest.raises(UnsupportedError, match=r"found none: export with `layout='paged'`"):
            rewrite(model, DRAFTS)
