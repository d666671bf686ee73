"""gpt-oss with each quantised expert, and its biases, in tensors of its own, as llm-compressor writes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.plan import plan_export
from hybridge.verification.options import VerifyOptions
from hybridge.verification.verifier import verify
from tests.support.quantized_checkpoints import (
    Arrays,
    Format,
    edit_quantization,
    eight_bits,
    pack_quantized,
    save_tensors,
)
from tests.support.tiny_models import save_tiny_model

FORM = pack_quantized(16)
ROUNDED = eight_bits(
    "float",
    "channel",
    inputs={"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True},
)
SIZES = {"hidden_size": 64, "intermediate_size": 32}
FIRST = "model.layers.0.mlp.experts"


def checkpoints(folder: Path, form: Format = FORM) -> tuple[Path, Path]:
    """The checkpoint with single experts in ``form``, and one in transformers' form with the dequantised numbers."""
    plain = save_tiny_model(folder / "plain", "gpt_oss", dtype="float32", **SIZES)
    quantized = Path(shutil.copytree(plain, folder / "quantized"))
    stored: Arrays = {}
    meant: Arrays = {}
    random = np.random.default_rng(5)
    for name, value in load_file(plain / "model.safetensors").items():
        module, _, last = name.rpartition(".")
        if not module.endswith(".experts"):
            stored[name] = meant[name] = value
        elif last.endswith("_bias"):
            meant[name] = random.standard_normal(value.shape).astype(np.float32)
            for number, row in enumerate(meant[name]):
                if last == "down_proj_bias":
                    stored[f"{module}.{number}.down_proj.bias"] = row
                else:
                    stored[f"{module}.{number}.gate_proj.bias"] = row[0::2]
                    stored[f"{module}.{number}.up_proj.bias"] = row[1::2]
        else:
            meant[name] = value.copy()
            for number, matrix in enumerate(meant[name]):
                parts = {"gate_proj": matrix[:, 0::2], "up_proj": matrix[:, 1::2]}
                for part, columns in ({"down_proj": matrix} if last == "down_proj" else parts).items():
                    tensors, numbers = form.pack(f"{module}.{number}.{part}", np.ascontiguousarray(columns.T))
                    stored |= tensors
                    columns[...] = numbers.T
    save_tensors(quantized, stored)
    save_tensors(plain, meant)
    edit_quantization(quantized, form.config)
    return quantized, plain


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["dense", "paged"])
def test_the_artifact_has_the_logits_of_the_checkpoint(layout: str, tmp_path: Path) -> None:
    quantized, meant = checkpoints(tmp_path)
    options = ExportOptions(max_batch_size=3, max_seq_len=96, dtype=DType.FLOAT32, layout=layout)
    export_checkpoint(quantized, tmp_path / "out", options)
    for checkpoint, engine in ((meant, "auto"), (quantized, "auto"), (quantized, "torch"), (meant, "torch")):
        compared = VerifyOptions(engine=engine, prompt_lengths=(5, 9), decode_steps=2, tolerance=1e-5)
        report = verify(checkpoint, tmp_path / "out", compared)
        assert report.passed, (engine, max(c.error for c in report.comparisons))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_inputs_of_single_experts_are_rounded(engine: str, tmp_path: Path) -> None:
    quantized, _ = checkpoints(tmp_path, ROUNDED)
    export_checkpoint(quantized, tmp_path / "out", ExportOptions(max_seq_len=96, dtype=DType.FLOAT32))
    compared = VerifyOptions(engine=engine, prompt_lengths=(5, 9), decode_steps=2, tolerance=1e-5)
    report = verify(quantized, tmp_path / "out", compared)
    assert report.passed and "inputs of 30 products are rounded" in " ".join(report.notes), report.verdict()


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["1.up_proj.bias", "4.down_proj.bias"])
def test_a_missing_bias_is_named(missing: str, tmp_path: Path) -> None:
    quantized, _ = checkpoints(tmp_path)
    tensors = load_file(quantized / "model.safetensors")
    del tensors[f"{FIRST}.{missing}"]
    save_tensors(quantized, tensors)
    with pytest.raises(CheckpointError, match=f"expected the tensor {FIRST}.{missing}"):
        plan_export(quantized)
