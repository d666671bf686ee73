"""hybridge inspect: a checkpoint, an artifact, an engine, and other folders."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import onnx
import pytest
import torch

from hybridge.artifact.config import read_config
from hybridge.artifact.engine_record import EngineRecord, PluginsRecord, ProfileRecord, write_engine_record
from hybridge.artifact.manifest import record_file
from hybridge.artifact.safetensors_file import read_safetensors
from hybridge.inspection import inspect_path
from hybridge.inspection.engine_inspector import run_inspector
from hybridge.inspection.summaries import WeightTotal
from tests.cli.command import hybridge
from tests.support.checkpoint_edits import copy_checkpoint, edit_tensors

Capture = pytest.CaptureFixture[str]


def test_checkpoint(capfd: Capture, checkpoint: Path) -> None:
    found = hybridge(capfd, "inspect", checkpoint, "--json").document
    tensors = [t for shard in checkpoint.glob("*.safetensors") for t in read_safetensors(shard).tensors.values()]
    assert found["kind"] == "checkpoint" and found["refusal"] is None
    assert found["weight_bytes"] == sum(t.nbytes for t in tensors) == sum(found["weight_types"].values())
    layers = sum(layer["weight_bytes"] for layer in found["layers"])
    assert layers + sum(t["weight_bytes"] for t in found["outside_layers"]) == found["weight_bytes"]
    kinds = [layer["kind"] for layer in found["layers"]]
    assert len(kinds) == 12 and set(kinds) == {"mamba", "mlp", "attention"}
    table = hybridge(capfd, "inspect", checkpoint)
    assert table.code == 0 and "can be exported" in table.out


def test_parts_beside_the_decoder_are_counted_apart(checkpoint: Path, tmp_path: Path) -> None:
    before = inspect_path(checkpoint)
    copy = copy_checkpoint(checkpoint, tmp_path / "copy")
    extra = {"mtp.layers.0.norm.weight": torch.zeros(5), "mtp.layers.3.mixer.q_proj.weight": torch.zeros(2, 2)}
    after = inspect_path(edit_tensors(copy, lambda tensors: tensors.update(extra)))
    assert after.layers == before.layers
    assert {*after.outside_layers} - {*before.outside_layers} == {WeightTotal("mtp.*", 9, 36)}


@pytest.mark.parametrize("index", ["10000", "9000000000", "9" * 5000])
def test_no_name_makes_more_layers_than_a_model_may_have(index: str, checkpoint: Path, tmp_path: Path) -> None:
    copy = copy_checkpoint(checkpoint, tmp_path / "copy")
    name = f"layers.{index}.norm.weight"
    after = inspect_path(edit_tensors(copy, lambda tensors: tensors.update({name: torch.zeros(2)})))
    assert len(after.layers) == 12 and WeightTotal(name, 2, 8) in after.outside_layers


def test_tables_show_the_first_thousand_rows(capfd: Capture, checkpoint: Path, tmp_path: Path) -> None:
    copy = copy_checkpoint(checkpoint, tmp_path / "copy")
    extra = {f"extra.{index}.weight": torch.zeros(1) for index in range(1001)}
    edit_tensors(copy, lambda tensors: tensors.update(extra))
    shown = hybridge(capfd, "inspect", copy).out
    assert 990 < shown.count("extra.") < 1001 and "more: --json lists them all" in shown


def test_checkpoint_that_cannot_be_exported(capfd: Capture, checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "unknown"
    shutil.copytree(checkpoint, copy)
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps({**config, "model_type": "abacus"}), encoding="utf-8")
    outcome = hybridge(capfd, "inspect", copy, "--json")
    assert outcome.code == 0 and "abacus" in outcome.document["refusal"]
    assert len(outcome.document["layers"]) == 12 and outcome.document["states"] == []
    assert "cannot be exported" in hybridge(capfd, "inspect", copy).out


def test_artifact(capfd: Capture, checkpoint: Path, artifact: Path) -> None:
    found = hybridge(capfd, "inspect", artifact, "--json").document
    config = read_config(artifact)
    assert found["kind"] == "artifact" and found["damage"] == [] and found["max_seq_len"] == 300
    mambas = config.layer_types.count("mamba")
    assert found["ops"]["trt_edgellm::update_ssm_state"] == mambas == found["ops"]["trt_edgellm::causal_conv1d"]
    attention = {"trt_edgellm::attention_step", "trt_edgellm::cached_attention"}
    assert set(found["functions"]) == {"trt_edgellm::update_ssm_state", "trt_edgellm::causal_conv1d"} | attention
    assert found["opsets"]["ai.onnx"] == 24
    assert [b["name"] for b in found["inputs"]] == [b.name for b in config.bindings.inputs]
    source = hybridge(capfd, "inspect", checkpoint, "--json").document
    assert found["states"] == source["states"] and found["parameters"] == source["parameters"]
    recurrent = config.recurrent_layers[0]
    conv_bytes = recurrent.conv_dim * recurrent.conv_kernel * config.conv_state_dtype.itemsize
    scan_bytes = recurrent.num_heads * recurrent.head_dim * recurrent.state_size * 4
    first = config.recurrent_layer_indices[0]
    assert found["layers"][first]["state_bytes_per_row"] == conv_bytes + scan_bytes
    kv = config.kv_layers[0]
    attention = found["layers"][config.attention_layer_indices[0]]
    assert attention["state_bytes_per_token"] == 2 * kv.num_kv_heads * kv.head_dim * config.kv_cache_dtype.itemsize
    by_file = hybridge(capfd, "inspect", artifact / "model.onnx", "--json").document
    assert by_file == found
    table = hybridge(capfd, "inspect", artifact)
    assert table.code == 0 and "past_key_0" in table.out and "as exported" in table.out


def test_damaged_artifact(capfd: Capture, artifact: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(artifact, copy)
    (copy / "tokenizer.json").unlink()
    with (copy / "generation_config.json").open("a", encoding="utf-8") as file:
        file.write(" ")
    outcome = hybridge(capfd, "inspect", copy, "--json")
    damage = outcome.document["damage"]
    assert len(damage) == 2
    assert any("tokenizer.json: missing" in d for d in damage) and any("generation_config" in d for d in damage)
    assert outcome.code == 2 and all(each in outcome.error for each in damage)
    (copy / "model.onnx").write_bytes(b"\xff\xff\xff")
    assert "model.onnx" in hybridge(capfd, "inspect", copy).error


def test_an_artifact_without_weights_is_shown_and_is_an_error(capfd: Capture, artifact: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(artifact, copy)
    weights = sorted(path.name for path in (copy / "weights").iterdir())
    shutil.rmtree(copy / "weights")
    outcome = hybridge(capfd, "inspect", copy)
    assert outcome.code == 2 and "past_key_0" in outcome.out
    assert outcome.error.startswith(f"{copy}: expected the files as they were exported, found ")
    assert f"weights/{weights[0]}: missing" in outcome.error and "export the checkpoint again" in outcome.error


def test_check_compares_hashes(capfd: Capture, artifact: Path, checkpoint: Path, tmp_path: Path) -> None:
    assert hybridge(capfd, "inspect", artifact, "--check").code == 0
    copy = tmp_path / "copy"
    shutil.copytree(artifact, copy)
    path = copy / "generation_config.json"
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    assert hybridge(capfd, "inspect", copy).code == 0
    for command in (("inspect", copy), ("run", copy, "--prompt", "a")):
        outcome = hybridge(capfd, *command, "--check")
        assert outcome.code == 2 and "generation_config.json: its content changed since the export" in outcome.error
    assert "found a checkpoint" in hybridge(capfd, "inspect", checkpoint, "--check").error


KEYS = {"dtype": "float16", "shape": ["batch", 2, 256, 64]}


@pytest.fixture
def engine(artifact: Path, tmp_path: Path) -> Path:
    """An artifact with an engine folder as the builder writes it (the engine itself is not TensorRT's)."""
    out = tmp_path / "out"
    shutil.copytree(artifact, out)
    folder = out / "engines" / "rtx-ada"
    folder.mkdir(parents=True)
    (folder / "model.engine").write_bytes(b"engine")
    record = EngineRecord(
        engine="model.engine",
        nbytes=6,
        sha256="0" * 64,
        library="tensorrt_rtx",
        library_version="1.7",
        preset="rtx-ada",
        compute_capabilities=["8.9"],
        plugins=PluginsRecord("trt_edgellm", "1", {"update_ssm_state": 3}, True, ""),
        max_batch_size=2,
        max_seq_len=256,
        profiles=[
            ProfileRecord("prefill", {"input_ids": [[1, 1], [1, 8], [2, 8]]}),
            ProfileRecord("decode", {"input_ids": [[1, 1], [1, 1], [2, 1]]}),
        ],
        bindings=[
            {"name": "input_ids", "mode": "input", "dtype": "int64", "shape": ["batch", "seq"]},
            {**KEYS, "name": "past_key_0", "mode": "input", "replaced_by": "present_key_0"},
            {"name": "logits", "mode": "output", "dtype": "float32", "shape": ["batch", 1000]},
            {**KEYS, "name": "present_key_0", "mode": "output", "aliases": "past_key_0"},
        ],
        layers={"CAST": 4, "MATRIX_MULTIPLY": 9},
        model_sha256=record_file(out, "model.onnx").sha256,
        build_seconds=1.5,
    )
    write_engine_record(folder / "engine.json", record)
    return folder


def test_engine(capfd: Capture, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    found = hybridge(capfd, "inspect", engine, "--json").document
    assert found["kind"] == "engine" and found["matches_model"] is True
    assert found["record"]["layers"] == {"CAST": 4, "MATRIX_MULTIPLY": 9}
    for path in (engine / "model.engine", engine / "engine.json"):
        assert hybridge(capfd, "inspect", path, "--json").document == found
    table = hybridge(capfd, "inspect", engine)
    assert "rtx-ada" in table.out and "[2, 1]" in table.out and "9 MATRIX_MULTIPLY" in table.out
    assert "3 update_ssm_state of trt_edgellm 1, states updated in place" in table.out
    memory = found["memory"]
    assert (memory["inputs"], memory["logits"], memory["row"], memory["rows"]) == (256, 8000, 1 << 16, 1 << 17)
    assert "states of 2 full rows" in table.out and "64.0 KiB" in table.out
    model = engine.parent.parent / "model.onnx"
    model.write_bytes(model.read_bytes() + b"\x00\x00")
    assert hybridge(capfd, "inspect", engine, "--json").document["matches_model"] is False
    model.unlink()
    assert hybridge(capfd, "inspect", engine, "--json").document["matches_model"] is None


def test_artifact_lists_its_engines(capfd: Capture, engine: Path) -> None:
    assert hybridge(capfd, "inspect", engine.parent.parent, "--json").document["engines"] == ["engines/rtx-ada"]


def test_damaged_engine(capfd: Capture, engine: Path) -> None:
    assert "its content changed since the build" in hybridge(capfd, "inspect", engine, "--check").error
    (engine / "model.engine").write_bytes(b"engin")
    assert "expected 6 bytes, found 5" in hybridge(capfd, "inspect", engine).error
    (engine / "model.engine").unlink()
    assert "model.engine" in hybridge(capfd, "inspect", engine).error


FAKE_TENSORRT = """
class Logger:
    ERROR = 1
    def __init__(self, level): pass
class LayerInformationFormat:
    JSON = "json"
class Inspector:
    def get_engine_information(self, form): return '{"Layers": ["conv"], "Bindings": []}'
class Engine:
    def create_engine_inspector(self): return Inspector()
class Runtime:
    def __init__(self, logger): print("a native library prints this")
    def deserialize_cuda_engine(self, data): return Engine() if data == b"engine" else None
"""


def test_engine_inspector(engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a module with TensorRT's interface: a real engine loads only on the GPU it was built for."""
    (tmp_path / "fake_tensorrt.py").write_text(FAKE_TENSORRT, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run_inspector(engine / "model.engine", "fake_tensorrt") == {"Layers": ["conv"], "Bindings": []}
    (engine / "model.engine").write_bytes(b"other")
    assert "not built for this GPU" in str(run_inspector(engine / "model.engine", "fake_tensorrt"))
    assert "no_such_module" in str(run_inspector(engine / "model.engine", "no_such_module"))


def test_engine_inspector_runs_nothing_of_the_current_folder(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "importlib", "tensorrt_rtx", "planted"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run_inspector(engine / "model.engine", "tensorrt_rtx")
    assert "planted" in str(run_inspector(engine / "model.engine", "planted"))
    assert not (tmp_path / "ran").exists()


def test_a_library_that_is_not_tensorrt_is_never_imported(
    capfd: Capture, engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even looking a module "package.name" up imports the package."""
    (tmp_path / "planted").mkdir()
    marker = f"open({str(tmp_path / 'ran')!r}, 'w')"
    (tmp_path / "planted" / "__init__.py").write_text(marker, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("hybridge.trt_plugins.build.capability.local_capability", lambda: "8.9")
    record = json.loads((engine / "engine.json").read_text(encoding="utf-8"))
    (engine / "engine.json").write_text(json.dumps({**record, "library": "planted.name"}), encoding="utf-8")
    assert "library: expected one of" in hybridge(capfd, "inspect", engine).error
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["nothing", "empty", "file.txt"])
def test_something_else(capfd: Capture, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("hello", encoding="utf-8")
    outcome = hybridge(capfd, "inspect", tmp_path / name)
    assert outcome.code == 2 and name in outcome.error and "expected" in outcome.error


def test_onnx_checker_sees_linked_weights(capfd: Capture, artifact: Path, tmp_path: Path) -> None:
    """The checker itself refuses the artifact, whose weights are hard links; a graph that is wrong is still found."""
    folder = tmp_path / "artifact"
    shutil.copytree(artifact, folder, copy_function=os.link)
    with pytest.raises(onnx.checker.ValidationError, match="hard link"):
        onnx.checker.check_model(folder / "model.onnx")
    outcome = hybridge(capfd, "inspect", folder, "--onnx-check")
    assert outcome.code == 0 and "onnx.checker accepts model.onnx" in outcome.err
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    model.graph.node[0].input[0] = "nothing"
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    outcome = hybridge(capfd, "inspect", folder, "--onnx-check")
    assert outcome.code == 2 and "onnx.checker refuses it" in outcome.error and "nothing" in outcome.error
