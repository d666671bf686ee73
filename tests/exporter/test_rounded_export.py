"""``hybridge export --quantize``: the weights of ``hybridge quantize --method rtn``, without a second checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import hybridge
from hybridge.artifact.errors import CheckpointError, SettingError, UnsupportedError
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.runtime.engines import create_dense_engine
from hybridge.runtime.engines.dense import StepInputs
from hybridge.runtime.engines.factory import EngineOptions
from tests.quantization.dequantized import dequantized
from tests.support.checkpoint_edits import edit_tensors
from tests.support.effort import sample
from tests.support.tiny_models import save_tiny_model

WIDE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "head_dim": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": False,
}


def stored_numbers(folder: Path) -> dict[str, bytes]:
    """The bytes of every initializer that DequantizeLinear reads, by name."""
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    used = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.input}
    found = {}
    for tensor in graph.initializer:
        if tensor.name in used:
            place = {entry.key: entry.value for entry in tensor.external_data}
            start, count = int(place["offset"]), int(place["length"])
            found[tensor.name] = (folder / place["location"]).read_bytes()[start : start + count]
    return found


@pytest.mark.parametrize("form", sample(("int4", "int8", "fp8", "nvfp4", "mxfp4"), on_push=("int4", "nvfp4")))
def test_the_same_numbers_as_a_quantised_checkpoint(tmp_path: Path, form: str) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "llama", dtype="bfloat16", **WIDE)
    group = {"group_size": 128} if form.startswith("int") else {}
    hybridge.quantize(checkpoint, tmp_path / "small", format=form, method="rtn", **group)
    hybridge.export(tmp_path / "small", tmp_path / "two")
    hybridge.export(checkpoint, tmp_path / "one", quantize=form)
    expected, found = stored_numbers(tmp_path / "two"), stored_numbers(tmp_path / "one")
    assert expected and {name: found[name] for name in expected} == expected
    assert "model.embed_tokens.weight" in found and "model.embed_tokens.weight" not in expected
    plain = sum(t.nbytes for n, t in load_file(checkpoint / "model.safetensors").items() if "norm" not in n)
    assert sum(map(len, found.values())) < (0.32 if form.endswith("4") else 0.52) * plain
    assert json.loads((tmp_path / "one" / "config.json").read_text())["quantization"]["formats"].keys() <= {
        f"{each}, rounded to nearest" for each in (form, "int8", "fp8")
    }


def test_a_tied_head_has_eight_bits(tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "qwen3", **{**WIDE, "tie_word_embeddings": True})
    hybridge.export(checkpoint, tmp_path / "out", quantize="int4")
    found = stored_numbers(tmp_path / "out")
    weight = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    numbers = np.frombuffer(found["model.embed_tokens.weight"], np.int8).reshape(weight.shape)
    scales = np.frombuffer(found["model.embed_tokens.weight_scale"], np.float32)[:, None]
    assert torch.allclose(torch.from_numpy(numbers * scales), weight, atol=float(scales.max()) / 1.9)


def stored_table(folder: Path, shape: tuple[int, int], form: str) -> torch.Tensor:
    """The float32 numbers of the embedding in an artifact, [vocab, hidden]."""
    found = stored_numbers(folder)
    stored = np.frombuffer(found["model.embed_tokens.weight"], np.uint8)
    if form == "int4":
        stored = (np.stack([stored << 4, stored & 0xF0], -1).reshape(-1).view(np.int8) >> 4).view(np.uint8)
    scales = np.frombuffer(found["model.embed_tokens.weight_scale"], np.float32).reshape(shape[0], -1)
    wide = np.repeat(scales, shape[1] // scales.shape[1], 1)
    return torch.from_numpy(stored.view(np.int8).reshape(shape) * wide)


def squared_error_of_nearest(weight: torch.Tensor, form: str) -> float:
    """With scales of the largest weight of each 32."""
    groups, largest = weight.view(-1, 32), 7 if form == "int4" else 127
    scales = groups.abs().amax(1, keepdim=True) / (largest + (0.5 if form == "int4" else 0))
    return float(((groups / scales).round().clamp(-largest - 1, largest) * scales - groups).square().sum())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["int4", "int8"])
def test_a_tied_table_is_rounded_beside_weights_of_a_quantised_checkpoint(tmp_path: Path, form: str) -> None:
    """Every engine gathers rows and computes logits from the one packed table, as transformers with its numbers."""
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "qwen3", **{**WIDE, "tie_word_embeddings": True})
    hybridge.quantize(checkpoint, tmp_path / "small")
    options = ExportOptions(quantize_embedding=form, max_seq_len=32, all_logits=True)
    export_checkpoint(tmp_path / "small", tmp_path / "out", options)
    weight = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    table = stored_table(tmp_path / "out", (weight.shape[0], weight.shape[1]), form)
    assert (table - weight).square().sum() < 0.95 * squared_error_of_nearest(weight, form)
    own = {**dequantized(tmp_path / "small"), "model.embed_tokens.weight": table}
    edit_tensors(checkpoint, lambda tensors: tensors.update(own))
    tokens = np.array([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        expected = model(torch.from_numpy(tokens)).logits[0].numpy()
    inputs = StepInputs(tokens, np.array([8], np.int32), np.array([0], np.int32))
    for name in ("onnxruntime", "onnxruntime-portable", "torch"):
        engine = create_dense_engine(tmp_path / "out", name, EngineOptions(exact_products=True))
        found = engine.step(inputs, engine.allocate_states(1, 16))[0]
        engine.close()
        assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected), name
    plain = sum(value.nbytes for value in own.values())
    stored = sum(path.stat().st_size for path in (tmp_path / "out" / "weights").iterdir())
    assert stored < (0.17 if form == "int4" else 0.2) * plain
    with pytest.raises(UnsupportedError, match="weights that the export rounded to int"):
        hybridge.verify(checkpoint, tmp_path / "out")


def test_an_embedding_of_its_own_type(tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "llama", **WIDE)
    hybridge.export(checkpoint, tmp_path / "out", quantize="int8", quantize_embedding="int4")
    weight = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    table = stored_table(tmp_path / "out", (weight.shape[0], weight.shape[1]), "int4")
    assert (table - weight).square().sum() < 0.95 * squared_error_of_nearest(weight, "int4")
    with pytest.raises(SettingError, match="quantize_embedding: expected int4 or int8, found 'fp8'"):
        hybridge.export(checkpoint, tmp_path / "other", quantize_embedding="fp8")


@pytest.mark.parametrize(("columns", "group"), [((48, 75), None), ((96, 160), 32)])
def test_columns_that_a_group_does_not_divide(tmp_path: Path, columns: tuple[int, int], group: int | None) -> None:
    sizes = {"hidden_size": columns[0], "intermediate_size": columns[1], "head_dim": 16, "num_attention_heads": 4}
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "llama", **sizes)
    hybridge.export(checkpoint, tmp_path / "out", quantize="int4")
    model = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    down = next(node for node in model.graph.node if node.input and node.input[0].endswith("0.mlp.down_proj.weight"))
    attributes = {a.name: a.i for a in down.attribute}
    assert attributes.get("block_size") == group and attributes["axis"] == (0 if group is None else 1)


def test_refusals(tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "llama", **WIDE)
    with pytest.raises(SettingError, match="quantize: expected"):
        hybridge.export(checkpoint, tmp_path / "out", quantize="int5")
    hybridge.quantize(checkpoint, tmp_path / "small")
    with pytest.raises(UnsupportedError, match="quantize: expected a checkpoint in full precision for int4"):
        hybridge.export(tmp_path / "small", tmp_path / "out", quantize="int4")
    hybridge.export(checkpoint, tmp_path / "rounded", quantize="int8")
    with pytest.raises(UnsupportedError, match="weights that the export rounded to int8: measure the difference"):
        hybridge.verify(checkpoint, tmp_path / "rounded")

    def damage(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.nan

    edit_tensors(checkpoint, damage)
    with pytest.raises(CheckpointError, match=r"up_proj.weight holds nan at index \[3, 5\]: expected finite weights"):
        hybridge.export(checkpoint, tmp_path / "out", quantize="int4")
    assert not (tmp_path / "out").exists()
