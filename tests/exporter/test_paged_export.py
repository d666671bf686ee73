"""What --layout paged writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from hybridge.artifact.config import config_from_json, config_to_json, read_config
from hybridge.artifact.errors import ArtifactError, EngineError, SettingError
from hybridge.artifact.paged import STEP_INPUTS
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.plan import plan_export
from hybridge.inspection import inspect_path
from hybridge.runtime.engines import create_dense_engine
from hybridge.runtime.engines.paged_factory import create_paged_engine
from tests.support.artifacts import ArtifactCache, Exported


@pytest.fixture(scope="module")
def paged(artifacts: ArtifactCache) -> Exported:
    return artifacts.get("nemotron_h", "float32", layout="paged")


def test_graph_has_packed_inputs_and_pools(paged: Exported) -> None:
    config, model = paged.config, onnx.load(paged.folder / "model.onnx", load_external_data=False)
    attention, recurrent = len(config.kv_layers), len(config.recurrent_layers)
    assert attention and recurrent
    names = [value.name for value in model.graph.input]
    pools = [f"kv_pool_{k}" for k in range(attention)]
    pools += [f"{kind}_state_{r}" for r in range(recurrent) for kind in ("conv", "recurrent")]
    assert names == [*(binding.name for binding in STEP_INPUTS), *pools]
    assert [value.name for value in model.graph.output] == ["logits", *(f"present_{name}" for name in pools)]
    values = (*model.graph.input, *model.graph.value_info)
    axes = {dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim}
    assert {"batch", "seq", "max_seq"}.isdisjoint(axes)
    ops = {node.op_type for node in model.graph.node if node.domain == "trt_edgellm"}
    assert ops == {"causal_conv1d", "update_ssm_state", "reshape_and_cache", "paged_attention"}
    assert ops == {function.name for function in model.functions}
    assert [opset.version for opset in model.opset_import if opset.domain == "trt_edgellm"] == [2]


def test_a_pool_has_the_size_of_a_dense_state(paged: Exported, artifacts: ArtifactCache) -> None:
    dense = plan_export(paged.checkpoint, ExportOptions()).to_json()
    found = plan_export(paged.checkpoint, ExportOptions(layout="paged")).to_json()
    for name in ("state_bytes_per_row", "kv_cache_bytes_per_token"):
        assert found[name] == dense[name] > 0
    states = inspect_path(paged.folder).states
    assert sum(s.bytes_per_row for s in states) == dense["state_bytes_per_row"]
    assert sum(s.bytes_per_token for s in states) == dense["kv_cache_bytes_per_token"]


@pytest.mark.parametrize("options", [{"all_logits": True}, {"head": False}])
def test_what_logits_indices_make_needless_is_refused(options: dict) -> None:
    with pytest.raises(SettingError, match="the tokens that its input logits_indices names"):
        ExportOptions(layout="paged", **options)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("inputs", 1, "dtype"), "int32"),
        (("inputs", 8, "shape"), [2, "num_blocks", "block_size", 1, 1]),
        (("inputs", 8, "name"), "past_key_0"),
        (("outputs", 0, "shape"), ["batch", 7]),
    ],
    ids=str,
)
def test_bindings_of_another_layout_are_refused(paged: Exported, path: tuple, value: object) -> None:
    data = json.loads(json.dumps(config_to_json(paged.config)))
    side, index, name = path
    data["bindings"][side][index][name] = value
    with pytest.raises(ArtifactError, match="export the checkpoint again"):
        config_from_json(data)


def test_config_is_read_back_as_written(paged: Exported) -> None:
    assert config_from_json(config_to_json(paged.config)) == read_config(paged.folder) == paged.config


def test_engines_say_which_layout_they_run(paged: Exported, artifacts: ArtifactCache) -> None:
    with pytest.raises(EngineError, match="expected layout dense, found paged"):
        create_dense_engine(paged.folder, "onnxruntime")
    with pytest.raises(EngineError, match="expected layout paged, found dense: export with `layout='paged'`"):
        create_paged_engine(artifacts.get("nemotron_h", "float32").folder)


def test_manifest_holds_the_layout(paged: Exported) -> None:
    manifest = json.loads(Path(paged.folder / "manifest.json").read_text())
    assert manifest["arguments"]["layout"] == "paged"
