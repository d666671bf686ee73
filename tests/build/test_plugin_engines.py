"""Engines with plugins, built for real by TensorRT-RTX without a GPU, and their networks layer by layer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.engine_record import EngineRecord
from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.build import child
from hybridge.trt_plugins.build.builder import build_engine, engine_folder
from hybridge.trt_plugins.build.child import child_environment
from hybridge.trt_plugins.build.model import parser_model
from hybridge.trt_plugins.build.network import layers_of
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.plugin_layers import check_plugin_layers, state_aliases
from hybridge.trt_plugins.catalog import OPS, spec_of
from hybridge.trt_plugins.plugins.layer import state_inputs
from tests.build.parsed import parsed_network
from tests.build.tiny_artifact import tiny_config, write_tiny_artifact
from tests.build.tiny_graph import SSM_NAME
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("torch", reason="needs the export extra (torch)")
pytest.importorskip("transformers", reason="needs the export extra (transformers)")

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = BuildOptions(target="rtx-blackwell", library="tensorrt_rtx", max_seq_len=80)
# As few layers as hold every kind of the family, with states of a size that the kernels have.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "nemotron_h fp16": (
        "nemotron_h",
        {"hybrid_override_pattern": "M-*M", "mamba_head_dim": 16, "ssm_state_size": 24},
        {"dtype": DType.FLOAT16},
    ),
    "bamba bf16": (
        "bamba",
        {"num_hidden_layers": 2, "attn_layer_indices": [1], "mamba_d_state": 16},
        {"dtype": DType.BFLOAT16},
    ),
    "mamba2 bf16, bf16 state": (
        "mamba2",
        {"num_hidden_layers": 1, "state_size": 16},
        {"dtype": DType.BFLOAT16, "state_dtype": DType.BFLOAT16},
    ),
    "mamba2 fp16": ("mamba2", {"num_hidden_layers": 1, "state_size": 16}, {"dtype": DType.FLOAT16}),
}
# Recurrent layers of the cases whose engines and networks are looked at closely.
RECURRENT = {"nemotron_h fp16": 2, "bamba bf16": 1, "mamba2 bf16, bf16 state": 1}
# With attention and without, and both types of 16 bits.
ON_PUSH = ("nemotron_h fp16", "mamba2 bf16, bf16 state")


def artifact_of(artifacts: ArtifactCache, name: str) -> Path:
    family, overrides, options = CASES[name]
    return artifacts.get(family, "float32", overrides, **options).folder


@pytest.fixture(params=sample(RECURRENT, ON_PUSH), scope="module")
def built(request: pytest.FixtureRequest, artifacts: ArtifactCache) -> tuple[str, EngineRecord]:
    """A case and the record of its engine, built with plugins because that is the default."""
    return request.param, build_engine(artifact_of(artifacts, request.param), OPTIONS)


def test_the_engine_has_one_plugin_layer_a_node(built: tuple[str, EngineRecord]) -> None:
    name, record = built
    count = RECURRENT[name]
    assert record.plugins
    assert record.plugins.ops == {"mamba2_conv_scan": count}
    assert (record.plugins.namespace, record.plugins.version, record.plugins.reason) == ("trt_edgellm", "1", "")
    assert record.layers["PLUGIN_V3"] == count
    assert [profile.name for profile in record.profiles] == ["prefill", "decode"]


def test_states_are_updated_in_place(built: tuple[str, EngineRecord]) -> None:
    name, record = built
    assert record.plugins.aliased
    states = {b["name"]: b["replaced_by"] for b in record.bindings if "replaced_by" in b}
    aliases = {b["aliases"]: b["name"] for b in record.bindings if "aliases" in b}
    assert aliases == states
    assert sum(state.startswith("recurrent_state") for state in states) == RECURRENT[name]


@dataclass(frozen=True)
class Networks:
    """What the parser makes of one artifact with plugins and without: layers; plugin nodes by name.

    joined, separate: with one plugin a mixer, and with two.
    """

    joined_nodes: dict[str, str]
    joined: list[dict[str, Any]]
    separate_nodes: dict[str, str]
    separate: list[dict[str, Any]]
    off: list[dict[str, Any]]

    def with_plugins(self) -> Iterator[tuple[dict[str, str], list[dict[str, Any]]]]:
        """Plugin nodes and plugin layers, of both forms."""
        for nodes, layers in ((self.joined_nodes, self.joined), (self.separate_nodes, self.separate)):
            yield nodes, [layer for layer in layers if layer["type"] == "PLUGIN_V3"]


@pytest.fixture(params=sample(RECURRENT, ON_PUSH), scope="module")
def networks(request: pytest.FixtureRequest, artifacts: ArtifactCache, tmp_path_factory: Any) -> Networks:
    environment = child_environment(tmp_path_factory.mktemp("links"))
    folder, modes = artifact_of(artifacts, request.param), ("joined", "separate", "off")
    command = [sys.executable, "-m", "tests.build.parse_artifact", str(folder), "80", *modes]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    joined, separate, off = map(json.loads, result.stdout.splitlines()[-len(modes) :])
    return Networks(joined["nodes"], joined["layers"], separate["nodes"], separate["layers"], off["layers"])


def test_each_node_is_one_plugin_layer(networks: Networks) -> None:
    for nodes, plugins in networks.with_plugins():
        assert [layer["name"] for layer in plugins] == list(nodes)
    assert set(networks.joined_nodes.values()) == {"mamba2_conv_scan"}
    assert set(networks.separate_nodes.values()) == {"causal_conv1d", "update_ssm_state"}
    assert len(networks.separate_nodes) == 2 * len(networks.joined_nodes)


def is_from_body(layer: dict[str, Any]) -> bool:
    return any(f"({op})" in layer["metadata"] for op in OPS)


def test_no_layer_comes_from_a_body(networks: Networks) -> None:
    assert [layer["name"] for layer in networks.off if is_from_body(layer)]
    assert not [layer["name"] for layer in (*networks.joined, *networks.separate) if is_from_body(layer)]


def test_the_other_layers_are_the_same(networks: Networks) -> None:
    """Layers that the parser made from a node; its helper layers have no metadata."""

    def kinds(layers: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
        return Counter((layer["type"], layer["metadata"]) for layer in layers if layer["metadata"])

    expected = kinds([layer for layer in networks.off if not is_from_body(layer)])
    assert len(expected) > 10
    found = kinds([layer for layer in networks.separate if layer["type"] != "PLUGIN_V3"])
    assert found == expected
    # Joining removes splits, views and gates, and adds a cast of the 16-bit output.
    joined = kinds([layer for layer in networks.joined if layer["type"] != "PLUGIN_V3"])
    assert sum(joined.values()) <= sum(expected.values()) - 8 * len(networks.joined_nodes)
    assert joined - expected == Counter({("CAST", f"[ONNX Layer: {name}.cast]"): 1 for name in networks.joined_nodes})


def test_plugin_layers_have_the_declared_types_and_shapes(networks: Networks) -> None:
    for nodes, layer in ((nodes, layer) for nodes, plugins in networks.with_plugins() for layer in plugins):
        spec = spec_of(nodes[layer["name"]])
        assert len(layer["inputs"]) == len(spec.inputs)
        for tensor, found in zip(spec.inputs, layer["inputs"], strict=True):
            assert len(found["shape"]) == len(tensor.dims_for(True)), (layer["name"], tensor.name)
            if isinstance(tensor.dtype, DType):
                assert found["dtype"] == tensor.dtype.value, (layer["name"], tensor.name)
        for output, found in zip(spec.outputs, layer["outputs"], strict=True):
            source = layer["inputs"][spec.output_source(output)]
            assert (found["dtype"], found["shape"][1:]) == (source["dtype"], source["shape"][1:])


def test_states_enter_and_leave_the_network_there(networks: Networks) -> None:
    for nodes, layer in ((nodes, layer) for nodes, plugins in networks.with_plugins() for layer in plugins):
        for output, state in state_inputs(spec_of(nodes[layer["name"]])).items():
            assert layer["inputs"][state]["outside"] and layer["outputs"][output]["outside"]
            assert layer["outputs"][output]["name"] == f"present_{layer['inputs'][state]['name']}"


def in_child(monkeypatch: pytest.MonkeyPatch, statements: str) -> None:
    """Run ``statements`` in the building process before anything else."""
    worker = "from hybridge.trt_plugins.build.worker"
    assert worker in child._COMMAND
    monkeypatch.setattr(child, "_COMMAND", child._COMMAND.replace(worker, f"{statements}; {worker}"))


def test_a_failing_plugin_is_an_error_that_names_it(artifacts: ArtifactCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT asks for tactics before the workspace; it ignores an error of the latter and builds."""
    fail = "hybridge.trt_plugins.kernels.catalog.plan = lambda call, device: 1 // 0"
    in_child(monkeypatch, f"import hybridge.trt_plugins.kernels.catalog; {fail}")
    artifact = artifact_of(artifacts, "mamba2 fp16")
    words = r"^plugin mamba2_conv_scan of layer \S+, (get_valid_tactics|get_workspace_size): ZeroDivisionError"
    with pytest.raises(EngineError, match=words):
        build_engine(artifact, BuildOptions(target="rtx-ada", library="tensorrt_rtx", max_seq_len=16))
    assert not engine_folder(artifact, "rtx-ada").exists()


def test_a_tensorrt_without_aliasing_gets_two_buffers(
    artifacts: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_child(monkeypatch, "import hybridge.trt_plugins.plugins.aliasing as a; a._FEATURE = 'absent'")
    artifact = artifact_of(artifacts, "bamba bf16")
    record = build_engine(artifact, BuildOptions(target="rtx-ada", library="tensorrt_rtx", max_seq_len=16))
    assert record.plugins and not record.plugins.aliased
    caches = {"present_key_0": "past_key_0", "present_value_0": "past_value_0"}
    assert {b["name"]: b["aliases"] for b in record.bindings if "aliases" in b} == caches


def test_states_may_be_kept_separate(artifacts: ArtifactCache) -> None:
    """Also an engine for several targets."""
    options = BuildOptions(compute_capabilities=("8.9", "12.1"), library="tensorrt_rtx", max_seq_len=16)
    artifact = artifact_of(artifacts, "mamba2 fp16")
    record = build_engine(artifact, replace(options, plugin_states="separate"))
    assert record.compute_capabilities == ["8.9", "12.1"] and engine_folder(artifact, "sm89-sm121").is_dir()
    assert record.plugins.ops == {"mamba2_conv_scan": 1}
    assert record.plugins and not record.plugins.aliased
    assert not [binding for binding in record.bindings if "aliases" in binding]


def test_mixers_may_be_kept_separate(artifacts: ArtifactCache) -> None:
    options = BuildOptions(target="jetson-orin", compute_capabilities=("8.6",), library="tensorrt_rtx", max_seq_len=16)
    record = build_engine(artifact_of(artifacts, "mamba2 fp16"), replace(options, plugin_mixers="separate"))
    assert record.plugins.ops == {"causal_conv1d": 1, "update_ssm_state": 1}
    assert record.layers["PLUGIN_V3"] == 2


def test_a_body_in_place_of_a_plugin_is_refused(tmp_path: Path) -> None:
    artifact = write_tiny_artifact(tmp_path / "artifact")
    with parsed_network(artifact, parser_model(artifact, tiny_config(DType.FLOAT16), 16)) as network:
        with pytest.raises(EngineError, match=rf"one plugin layer for node {SSM_NAME} \(update_ssm_state\), found 0"):
            check_plugin_layers(network, {SSM_NAME: "update_ssm_state"})
        # How the parser marks the layers of a body, which the check relies on.
        mark = f"| {SSM_NAME} (update_ssm_state)"
        assert [layer.name for layer in layers_of(network) if mark in layer.metadata]


@dataclass(frozen=True)
class LayerDouble:
    type: Any
    name: str
    metadata: str = ""
    num_inputs: int = 0


def network_of(*layers: LayerDouble) -> Any:
    return SimpleNamespace(num_layers=len(layers), get_layer=lambda index: layers[index])


PLUGIN, OTHER = SimpleNamespace(name="PLUGIN_V3"), SimpleNamespace(name="ELEMENTWISE")


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([LayerDouble(PLUGIN, "a"), LayerDouble(PLUGIN, "a")], "one plugin layer for node a .*, found 2"),
        ([LayerDouble(PLUGIN, "a"), LayerDouble(PLUGIN, "b")], "for operators alone, found b"),
        (
            [LayerDouble(PLUGIN, "a"), LayerDouble(OTHER, "add", "[ONNX Layer: add | a (op)]")],
            "besides the plugin.* add",
        ),
    ],
)
def test_other_layers_are_refused(layers: list[LayerDouble], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        check_plugin_layers(network_of(*layers), {"a": "op"})


def test_a_state_that_others_read_is_not_aliased() -> None:
    state = SimpleNamespace(name="conv_state_0", is_network_input=True)
    out = SimpleNamespace(name="present_conv_state_0", is_network_output=True)
    inputs = [SimpleNamespace(name=name, is_network_input=False) for name in ("x", "weight", "bias")]
    plugin = SimpleNamespace(
        type=PLUGIN,
        name="a",
        num_inputs=5,
        get_input=[*inputs, state, inputs[0]].__getitem__,
        get_output=[inputs[0], out].__getitem__,
    )
    reader = SimpleNamespace(type=OTHER, name="add", num_inputs=1, get_input=lambda index: state)
    nodes = {"a": "causal_conv1d"}
    assert state_aliases(network_of(plugin), nodes) == {"present_conv_state_0": "conv_state_0"}
    assert state_aliases(network_of(plugin, reader), nodes) == {}
