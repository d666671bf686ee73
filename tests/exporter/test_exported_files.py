"""What an artifact holds on disk, read back with the onnx and safetensors libraries alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors import safe_open

from hybridge.artifact.dtypes import DType
from hybridge.artifact.manifest import check_files, read_manifest
from hybridge.artifact.progress import NoProgress
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.trt_plugins.catalog import OPS
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.export_cases import ExportCase, case_params
from tests.support.tiny_models import save_tiny_model

OPERATOR_DOMAIN = "trt_edgellm"


@pytest.fixture(scope="module", params=case_params())
def case(request: pytest.FixtureRequest) -> ExportCase:
    return request.param


@pytest.fixture(scope="module")
def exported(case: ExportCase, artifacts: ArtifactCache) -> Exported:
    return case.get(artifacts)


@pytest.fixture(scope="module")
def model(exported: Exported) -> onnx.ModelProto:
    return onnx.load(exported.folder / "model.onnx", load_external_data=False)


class Steps(NoProgress):
    """The names of the steps of some work."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def start(self, name: str, *_rest: object) -> None:
        self.names.append(name)


def external_bytes(folder: Path, tensor: onnx.TensorProto) -> bytes:
    entry = {e.key: e.value for e in tensor.external_data}
    with (folder / entry["location"]).open("rb") as file:
        file.seek(int(entry["offset"]))
        return file.read(int(entry["length"]))


def checkpoint_tensors(exported: Exported) -> dict[str, bytes]:
    import torch

    tensors = {}
    with safe_open(exported.checkpoint / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a dict)
            tensors[name] = file.get_tensor(name).contiguous().view(torch.uint8).numpy().tobytes()
    return tensors


def test_every_weight_is_external_and_byte_for_byte_the_checkpoint_s(
    exported: Exported, model: onnx.ModelProto
) -> None:
    tensors, used, own = checkpoint_tensors(exported), set(), set()
    for tensor in model.graph.initializer:
        if tensor.name.startswith(f"{OPERATOR_DOMAIN}."):
            continue
        assert tensor.data_location == onnx.TensorProto.EXTERNAL, tensor.name
        location = next(e.value for e in tensor.external_data if e.key == "location")
        assert location.startswith("weights/")
        if location.endswith("derived.safetensors"):
            own.add(tensor.name)
            continue
        assert external_bytes(exported.folder, tensor) == tensors[tensor.name], tensor.name
        used.add(tensor.name)
    decays = {name for name in tensors if name.endswith(".A_log")}
    assert used == set(tensors) - decays
    assert own - {"rotary.inv_freq"} == {name.removesuffix("_log") for name in decays}


@pytest.mark.slow
def test_layers_refer_to_the_weights_that_they_share(artifacts: ArtifactCache) -> None:
    exported = artifacts.get("zamba2", "bfloat16", dtype=DType.FLOAT32)
    graph = onnx.load(exported.folder / "model.onnx", load_external_data=False).graph
    names = [tensor.name for tensor in graph.initializer]
    assert len(names) == len(set(names))
    stored = set(checkpoint_tensors(exported))
    assert {name for name in stored if not name.endswith(".A_log")} == stored & set(names)
    shared = [name for name in names if ".shared_transformer." in name and "adapter" not in name]
    assert shared and all(name.startswith("model.layers.0.") for name in shared)


def test_a_is_float32_from_its_bytes_to_the_operator(exported: Exported, model: onnx.ModelProto) -> None:
    decays = [t for t in model.graph.initializer if t.name.endswith(".A")]
    assert len(decays) == len(exported.config.recurrent_layers)
    with safe_open(exported.checkpoint / "model.safetensors", "pt") as file:
        for a in decays:
            # The gated delta rule takes A times the time step.
            (reader,) = (node.op_type for node in model.graph.node if a.name in node.input)
            assert reader in ("update_ssm_state", "Mul")
            assert a.data_type == onnx.TensorProto.FLOAT
            expected = -np.exp(file.get_tensor(f"{a.name}_log").double().numpy())
            found = np.frombuffer(external_bytes(exported.folder, a), np.float32)
            np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_another_compute_type_casts_the_weights_where_they_lie(case: ExportCase, model: onnx.ModelProto) -> None:
    stored = onnx.TensorProto.DataType.Value(
        {"bfloat16": "BFLOAT16", "float16": "FLOAT16", "float32": "FLOAT"}[case.stored]
    )
    matrices = [t for t in model.graph.initializer if t.name.endswith("proj.weight")]
    assert matrices
    assert {t.data_type for t in matrices} == {stored}
    cast = {n.input[0] for n in model.graph.node if n.op_type == "Cast"}
    # Matrices of experts are joined first; then one cast follows for all of them.
    joined = {name for n in model.graph.node if n.op_type == "Concat" for name in n.input}
    alone = [t for t in matrices if t.name not in joined]
    assert all((t.name in cast) == (case.compute is not DType(case.stored)) for t in alone)
    assert not cast & joined


def test_only_declared_operators(model: onnx.ModelProto) -> None:
    operators = {(n.domain, n.op_type) for n in model.graph.node if n.domain}
    assert {domain for domain, _ in operators} <= {OPERATOR_DOMAIN}
    assert {name for _, name in operators} <= set(OPS)
    assert {(f.domain, f.name) for f in model.functions} == operators
    assert {n.domain for f in model.functions for n in f.node} <= {""}
    assert {o.domain: o.version for o in model.opset_import}[""] == 24
    assert {n.op_type for n in model.graph.node} >= (
        {"attention_step", "cached_attention"} if "past_key_0" in _inputs(model) else set()
    )


def test_interface_is_the_one_of_config_json(exported: Exported, model: onnx.ModelProto) -> None:
    declared = json.loads((exported.folder / "config.json").read_text())["bindings"]
    types = {"float32": 1, "int32": 6, "int64": 7, "float16": 10, "bfloat16": 16}
    for kind, values in (("inputs", model.graph.input), ("outputs", model.graph.output)):
        found = [
            (v.name, v.type.tensor_type.elem_type, [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim])
            for v in values
        ]
        assert found == [(b["name"], types[b["dtype"]], b["shape"]) for b in declared[kind]]


def test_logits_and_states_have_their_types(case: ExportCase, exported: Exported) -> None:
    bindings = exported.config.bindings
    vocab = exported.config.vocab_size
    all_logits = case.options.get("all_logits", False)
    assert bindings.output("logits").shape == (("batch", "seq", vocab) if all_logits else ("batch", vocab))
    assert bindings.output("logits").dtype is DType.FLOAT32
    state = case.options.get("state_dtype", DType.FLOAT32)
    for binding in bindings.states:
        assert binding.dtype is (state if binding.name.startswith("recurrent") else case.compute), binding.name


def test_stable_value_names(exported: Exported, model: onnx.ModelProto) -> None:
    values = {name for node in model.graph.node for name in node.output}
    layers = {f"layers.{i}.output" for i in range(exported.config.num_hidden_layers)}
    assert values >= {*layers, "embeddings.output", "final_norm.output"}


def test_nothing_of_this_machine_in_the_file(exported: Exported, model: onnx.ModelProto) -> None:
    raw = (exported.folder / "model.onnx").read_bytes()
    for leak in (str(exported.checkpoint), str(exported.folder), str(Path.home()), "site-packages", ".py", 'File "'):
        assert leak.encode() not in raw, leak
    for part in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        assert not part.doc_string
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.initializer, *model.functions, model):
        assert not part.metadata_props
    text = (exported.folder / "config.json").read_text() + (exported.folder / "manifest.json").read_text()
    assert str(exported.checkpoint.parent) not in text


def test_weights_are_shared_not_copied(case: ExportCase, exported: Exported) -> None:
    ours, theirs = exported.folder / "weights" / "model.safetensors", exported.checkpoint / "model.safetensors"
    linked = case.options.get("weights", "auto") == "auto"
    assert os.path.samefile(ours, theirs) == linked
    assert ours.stat().st_nlink == (2 if linked else 1)
    new = [p for p in exported.folder.rglob("*") if p.is_file() and p.stat().st_nlink == 1]
    assert exported.report.bytes_written == sum(p.stat().st_size for p in new)
    if linked:
        assert {p.name for p in new} <= {
            "model.onnx",
            "config.json",
            "manifest.json",
            "generation_config.json",
            "derived.safetensors",
        }
        # A of each head, the rotary frequencies, and a header.
        derived = exported.folder / "weights" / "derived.safetensors"
        assert not derived.exists() or derived.stat().st_size < 1500


def test_onnx_checker_passes_on_the_file(exported: Exported, tmp_path: Path) -> None:
    """The checker refuses hard links, hence a copy."""
    copy = Path(shutil.copytree(exported.folder, tmp_path / "copy"))
    onnx.checker.check_model(str(copy / "model.onnx"), full_check=False)


def _inputs(model: onnx.ModelProto) -> set[str]:
    return {v.name for v in model.graph.input}


def test_a_tokenizer_and_named_chat_templates_are_carried_and_a_missing_one_is_noted(tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path / "c", "llama", num_hidden_layers=1)
    tokenizer, steps = checkpoint / "tokenizer.json", Steps()
    tokenizer.unlink(missing_ok=True)
    report = export_checkpoint(checkpoint, tmp_path / "without", ExportOptions(scan=False), steps)
    assert any("no tokenizer.json" in note for note in report.notes)
    assert "scan weights" not in steps.names
    tokenizer.write_text("{}")
    (checkpoint / "additional_chat_templates").mkdir()
    (checkpoint / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    report = export_checkpoint(checkpoint, tmp_path / "out", progress=steps)
    assert not any("tokenizer" in note for note in report.notes)
    assert "scan weights" in steps.names
    carried = "additional_chat_templates/tool_use.jinja"
    assert (tmp_path / "out" / carried).read_text() == "{{ tools }}"
    manifest = read_manifest(tmp_path / "out")
    assert carried in {record.path for record in manifest.files}
    check_files(tmp_path / "out", manifest)
