"""What --speculative-tokens writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from hybridge.artifact.config import config_from_json, config_to_json, read_config
from hybridge.artifact.errors import ArtifactError, SettingError
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.plan import plan_export
from tests.support.artifacts import ArtifactCache, Exported


@pytest.fixture(scope="module")
def exported(artifacts: ArtifactCache) -> Exported:
    return artifacts.get("nemotron_h", "float32", layout="paged", speculative_tokens=3)


def test_graph_has_a_slot_for_every_candidate(exported: Exported) -> None:
    model = onnx.load(exported.folder / "model.onnx", load_external_data=False)
    inputs = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    assert inputs["state_indices"] == ["rows", 4]
    assert inputs["num_accepted_tokens"] == ["rows"]
    assert list(inputs)[6:9] == ["state_indices", "num_accepted_tokens", "logits_indices"]
    assert [opset.version for opset in model.opset_import if opset.domain == "trt_edgellm"] == [3]
    bodies = {f.name: list(f.input)[-3:] for f in model.functions}
    rows = ["query_start_loc", "state_indices", "num_accepted_tokens"]
    assert bodies["causal_conv1d"] == bodies["update_ssm_state"] == rows


def test_operators_of_all_versions_come_in_any_order(artifacts: ArtifactCache) -> None:
    layers = {"layer_types": ["full_attention", "linear_attention"], "num_hidden_layers": 2}
    exported = artifacts.get("qwen3_next", "float32", layers, layout="paged", speculative_tokens=3)
    model = onnx.load(exported.folder / "model.onnx", load_external_data=False)
    assert [opset.version for opset in model.opset_import if opset.domain == "trt_edgellm"] == [3]


def test_config_says_how_many_candidates(exported: Exported, artifacts: ArtifactCache) -> None:
    text = json.loads((exported.folder / "config.json").read_text())
    assert text["speculative_tokens"] == 3 == exported.config.speculative_tokens
    assert config_from_json(config_to_json(exported.config)) == read_config(exported.folder)
    plain = artifacts.get("nemotron_h", "float32", layout="paged")
    assert "speculative_tokens" not in json.loads((plain.folder / "config.json").read_text())
    assert plain.config.speculative_tokens == 0


def test_a_row_takes_the_states_of_all_its_candidates(exported: Exported) -> None:
    plans = [plan_export(exported.checkpoint, ExportOptions(layout="paged", speculative_tokens=k)) for k in (0, 3)]
    assert plans[1].state_bytes_per_row() == 4 * plans[0].state_bytes_per_row() > 0


@pytest.mark.parametrize("count", [1.5, -1, 16])
def test_counts_without_kernels_are_refused(count: int) -> None:
    with pytest.raises(SettingError, match=f"speculative_tokens: expected an integer from 0 to 15, found {count}"):
        ExportOptions(layout="paged", speculative_tokens=count)


def test_the_dense_layout_has_no_slots_for_candidates() -> None:
    with pytest.raises(SettingError, match="speculative_tokens: expected `layout='paged'`"):
        ExportOptions(speculative_tokens=2)


@pytest.mark.parametrize(("name", "value"), [("speculative_tokens", 2), ("layout", "dense")])
def test_a_config_that_contradicts_its_bindings_is_refused(exported: Exported, name: str, value: object) -> None:
    data = {**config_to_json(exported.config), name: value}
    with pytest.raises(ArtifactError, match="export the checkpoint again"):
        config_from_json(data)


def test_manifest_holds_the_count(exported: Exported) -> None:
    manifest = json.loads(Path(exported.folder / "manifest.json").read_text())
    assert manifest["arguments"]["speculative_tokens"] == 3
