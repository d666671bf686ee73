"""Artifacts with quantised weights compute what the checkpoint means, on every engine and as a plain ONNX file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
import torch
from safetensors.numpy import load_file

from hybridge.artifact.config import Quantization, read_config
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.onnx_file import read_onnx
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.runtime.engines import create_dense_engine
from hybridge.runtime.engines.dense import StepInputs
from hybridge.runtime.engines.factory import EngineOptions
from hybridge.runtime.engines.onnxruntime import engine as engine_module
from hybridge.runtime.engines.onnxruntime import graph_cache, linear_form, session, stored_products
from hybridge.runtime.engines.onnxruntime.cpu_library import CpuLibrary, cpu_library
from hybridge.runtime.engines.onnxruntime.graph_form import GraphForm
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from hybridge.runtime.engines.onnxruntime.model_file import read_model
from hybridge.runtime.engines.onnxruntime.rewrite import rewrite
from hybridge.runtime.engines.onnxruntime.session import create_session
from hybridge.runtime.llm import LLM
from hybridge.verification.options import VerifyOptions
from hybridge.verification.rounded_inputs import FP4, FP8, Rounding
from hybridge.verification.verifier import verify
from tests.support.effort import sample
from tests.support.quantized_checkpoints import (
    Format,
    awq,
    eight_bits,
    float4,
    fp8_blocks,
    gptq,
    modelopt,
    pack_quantized,
    save_quantized,
    save_tensors,
)
from tests.support.tiny_models import EXPERTS
from tests.support.versions import needs_opset_24

TOLERANCE = 1e-5


def inputs(kind: str, strategy: str = "tensor", dynamic: bool | str = True, **more: Any) -> dict[str, Any]:
    """input_activations of compressed-tensors."""
    return {"num_bits": 8, "type": kind, "symmetric": True, "strategy": strategy, "dynamic": dynamic, **more}


GROUPS = inputs("float", "group", group_size=16)
NVFP4_INPUTS = inputs("float", "tensor_group", "local", num_bits=4, group_size=16)


@dataclass(frozen=True)
class Case:
    """A family in a format, and the options of its export; all compute in float32."""

    family: str
    form: Format
    overrides: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)


# Sizes: down_proj has 84 columns, which no block of a kernel divides.
GRANITE = {
    "num_hidden_layers": 2,
    "layer_types": ["mamba", "attention"],
    "hidden_size": 96,
    "mamba_n_heads": 12,
    "shared_intermediate_size": 64,
}
WIDE = {"num_hidden_layers": 1, "intermediate_size": 96}
LLAMA = {"num_hidden_layers": 1, "intermediate_size": 84}
HYBRID = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
EXPERT_SIZES = {**EXPERTS["qwen3_next"], "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
CASES = {
    "w4 channel, dense": Case("llama", pack_quantized(None), LLAMA),
    "w4 zero points and act-order, paged": Case(
        "qwen3_5_text",
        pack_quantized(24, symmetric=False, ordered=True),
        HYBRID,
        {"layout": "paged"},
    ),
    "nvfp4 experts, dense": Case("qwen3_next", float4("nvfp4-pack-quantized"), {**HYBRID, **EXPERT_SIZES}),
    "gptq experts, paged": Case("qwen3_next", gptq(16), {**HYBRID, **EXPERT_SIZES}, {"layout": "paged"}),
    "fp8 blocks of experts": Case("qwen3_next", fp8_blocks(16, 16), {**HYBRID, **EXPERT_SIZES}),
    "modelopt fp8, paged": Case("nemotron_h", modelopt("FP8"), {"hybrid_override_pattern": "M*-"}, {"layout": "paged"}),
    "modelopt nvfp4 with factors": Case("llama", modelopt("NVFP4_AWQ", factors=True), WIDE),
    "int8 with zero points": Case("llama", eight_bits("int", "channel", symmetric=False), LLAMA),
    "int8, dynamic inputs": Case("llama", eight_bits("int", "channel", inputs=inputs("int", "token")), WIDE),
    "int8, static inputs": Case("llama", eight_bits("int", "tensor", inputs=inputs("int", dynamic=False)), WIDE),
    "fp8, dynamic inputs": Case("llama", eight_bits("float", "channel", inputs=inputs("float", "token")), WIDE),
    "fp8 blocks, inputs by group": Case("llama", eight_bits("float", "block", inputs=GROUPS), WIDE),
    "nvfp4, rounded inputs": Case("llama", float4("nvfp4-pack-quantized", NVFP4_INPUTS), WIDE),
    "awq": Case("llama", awq(16), WIDE),
    "mxfp4": Case("granitemoehybrid", float4("mxfp4-pack-quantized"), GRANITE),
}
ROUNDED = [name for name in CASES if "inputs" in name or name.startswith(("fp8 blocks", "modelopt"))]
ON_PUSH = ("nvfp4, rounded inputs", "int8, dynamic inputs")


@pytest.mark.parametrize("name", sample(CASES, ON_PUSH))
def test_the_artifact_has_the_logits_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    quantized, meant = save_quantized(tmp_path, case.family, case.form, **case.overrides)
    options = ExportOptions(max_batch_size=3, max_seq_len=96, dtype=DType.FLOAT32, **case.options)
    export_checkpoint(quantized, tmp_path / "out", options)
    # The reference of the quantised checkpoint, and the numbers that it was made from: both are compared with, but
    # where inputs are rounded, of which the latter know nothing.
    record = read_config(tmp_path / "out").quantization
    assert record is not None
    assert bool(record.inputs) == (name in ROUNDED), record.inputs
    for checkpoint, engine in ((quantized if record.inputs else meant, "auto"), (quantized, "torch")):
        compared = VerifyOptions(engine=engine, prompt_lengths=(5, 9), decode_steps=2, tolerance=TOLERANCE)
        report = verify(checkpoint, tmp_path / "out", compared)
        assert report.passed, (engine, max(c.error for c in report.comparisons))


def test_inputs_stay_as_computed_where_that_is_asked_for(tmp_path: Path) -> None:
    case = CASES["int8, dynamic inputs"]
    quantized, meant = save_quantized(tmp_path, case.family, case.form, **case.overrides)
    options = ExportOptions(max_batch_size=1, max_seq_len=32, dtype=DType.FLOAT32, rounded_inputs=False)
    report = export_checkpoint(quantized, tmp_path / "out", options)
    assert "the checkpoint rounds the inputs of 8 products" in " ".join(report.notes)
    compared = VerifyOptions(engine="onnxruntime", prompt_lengths=(5,), decode_steps=1, tolerance=TOLERANCE)
    assert verify(meant, tmp_path / "out", compared).passed
    found = verify(quantized, tmp_path / "out", compared)
    assert found.passed and "neither the artifact nor the reference does" in " ".join(found.notes)


@pytest.mark.parametrize("numbers", [448.0, -448.1, 1e30, 0.0, 17.0, 17.5, 0.4375, 2**-10, 2**-9 * 1.5])
def test_reference_rounds_to_e4m3(numbers: float) -> None:
    x = np.array([numbers, -448.0], np.float32)
    expected = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(Rounding(FP8, None, 1.0)(torch.from_numpy(x)), expected)


def test_reference_rounds_to_e2m1_with_ties_to_even() -> None:
    x = np.linspace(-6, 6, 16 * 33, dtype=np.float32).reshape(33, 16)
    x[:, 0] = 6.0
    expected = x.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(Rounding(FP4, 16, 1.0)(torch.from_numpy(x)), expected)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("quantized")
    quantized, _ = save_quantized(folder, "llama", pack_quantized(16), **WIDE, tie_word_embeddings=True)
    options = ExportOptions(max_batch_size=1, max_seq_len=32, dtype=DType.FLOAT32)
    export_checkpoint(quantized, folder / "out", options)
    return quantized, folder / "out"


def test_config_and_graph_say_what_is_quantised(exported: tuple[Path, Path]) -> None:
    out = exported[1]
    record = read_config(out).quantization
    assert isinstance(record, Quantization)
    assert record.formats == {"compressed-tensors pack-quantized int4": 7}
    assert 4.5 < record.bits < 8  # the embedding has 16
    graph = read_onnx(out, "model.onnx").model.graph
    kinds = {tensor.name: DType.from_onnx(tensor.data_type) for tensor in graph.initializer}
    assert sum(kind is DType.INT4 for kind in kinds.values()) == 7
    assert sum(node.op_type == "DequantizeLinear" for node in graph.node) == 7
    # All packed weights lie in one file of the artifact, once: the checkpoint's shard is left out.
    assert sorted(path.name for path in (out / "weights").iterdir()) == ["derived.safetensors", "quantized.safetensors"]


def test_onnxruntime_multiplies_with_packed_weights(exported: tuple[Path, Path]) -> None:
    folder = exported[1]
    found = rewrite(read_model(folder), read_config(folder), GraphForm.ONE_TOKEN, installed_kernels())
    nodes = list(found.model.graph)
    products = sum(node.op_type == "MatMulNBits" for node in nodes)
    if cpu_library().path is not None:
        inputs = [value for node in nodes if node.op_type == "FusedLinear" for value in node.inputs if value]
        products = sum(str(value.name).endswith(".linear") and str(value.dtype) == "UINT8" for value in inputs)
    assert products == 7
    assert found.serialised().float32_bytes < 97 * 48 * 4 + 2000  # the tied embedding, norms and rotary frequencies


def test_a_large_model_runs_every_step_in_one_session(
    exported: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without our library, of which ONNX Runtime's kernels take the place."""
    prompt = [3, 1, 4, 1, 5]
    with LLM(exported[1], "onnxruntime", threads=1) as llm:
        expected = llm.generate(prompt, max_new_tokens=6).token_ids
    opened: list[object] = []
    missing = CpuLibrary(None, "no compiler")
    for module in (linear_form, stored_products, session):
        monkeypatch.setattr(module, "cpu_library", lambda: missing)
    monkeypatch.setattr(graph_cache, "library_key", lambda: "")

    def counted(*arguments: Any, **options: Any) -> object:
        opened.append(create_session(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(engine_module, "MOST_BLOCK_BYTES", 0)
    monkeypatch.setattr(engine_module, "create_session", counted)
    with LLM(exported[1], "onnxruntime", threads=1) as llm:
        assert llm.generate(prompt, max_new_tokens=6).token_ids == expected
        assert "rounded to 8 bits" in llm.engine.notes[0] and llm.engine.notes[1].endswith("Hybridge's: no compiler")
    assert len(opened) == 1
    with LLM(exported[1], "onnxruntime", threads=1, exact_products=True) as llm:
        assert not any("rounded to 8 bits" in note for note in llm.engine.notes)


@needs_opset_24
def test_plain_onnxruntime_runs_the_file(exported: tuple[Path, Path]) -> None:
    """No rewrite of ours: ONNX Runtime reads the packed weights from the artifact's file by itself."""
    config = read_config(exported[1])
    ids = np.array([[3, 1, 4, 1, 5]])
    lengths, past = np.array([5], np.int32), np.array([0], np.int32)
    states = {b.name: np.zeros(b.resolve(batch=1, max_seq=32), np.float32) for b in config.bindings.states}
    session = ort.InferenceSession(str(exported[1] / "model.onnx"), providers=["CPUExecutionProvider"])
    feeds = {"input_ids": ids, "context_lengths": lengths, "past_lengths": past, **states}
    (logits,) = session.run(["logits"], feeds)
    engine = create_dense_engine(exported[1], "onnxruntime", EngineOptions(exact_products=True))
    expected = engine.step(StepInputs(ids, lengths, past), engine.allocate_states(1, 32))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("value", "words"), [(0.0, "holds 0.0"), (np.nan, "holds nan"), (np.inf, "holds inf")])
def test_bad_scales_are_refused_and_nothing_is_written(value: float, words: str, tmp_path: Path) -> None:
    quantized, _ = save_quantized(tmp_path, "llama", pack_quantized(16), **WIDE)

    tensors = load_file(quantized / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight_scale"][3, 1] = value
    save_tensors(quantized, tensors)
    with pytest.raises(CheckpointError, match=rf"up_proj.weight_scale {words} at index \[3, 1\].*finite scales"):
        export_checkpoint(quantized, tmp_path / "out")
    assert not (tmp_path / "out").exists()
