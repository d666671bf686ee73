"""Written checkpoints in transformers by the library compressed-tensors: the logits and weights of our own readers."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import hybridge
from hybridge.artifact.dtypes import DType
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.runtime.engines import create_dense_engine
from hybridge.runtime.engines.dense import StepInputs
from hybridge.runtime.engines.factory import EngineOptions
from tests.quantization.dequantized import dequantized
from tests.support.tiny_models import save_tiny_model

pytestmark = pytest.mark.slow
# Numbers of columns that the library packs in every format.
SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "tie_word_embeddings": False}
TOKENS = np.array([[3, 1, 4, 1, 5, 9, 2, 6]])
FAMILIES = ("qwen3", "nemotron_h", "qwen3_next", "lfm2")


def quantised(folder: Path, family: str, form: str) -> Path:
    pytest.importorskip("compressed_tensors", reason="needs the library compressed-tensors")
    checkpoint = save_tiny_model(folder / "checkpoint", family, **SIZES)
    hybridge.quantize(checkpoint, folder / "small", format=form, method="rtn")
    return folder / "small"


def their_model(folder: Path) -> Any:
    """In float32; the library dequantises in the first run, 4-bit floats to bfloat16, in which the model cannot run."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with contextlib.suppress(RuntimeError), torch.no_grad():
        model(torch.from_numpy(TOKENS), use_cache=False)
    torch.nn.Module.float(model)  # transformers itself refuses to convert a quantised model
    return model


def our_logits(folder: Path, out: Path) -> np.ndarray:
    options = ExportOptions(dtype=DType.FLOAT32, max_seq_len=16, all_logits=True, kernels="optional")
    export_checkpoint(folder, out, options)
    engine = create_dense_engine(out, "onnxruntime", EngineOptions(exact_products=True))
    lengths, past = np.array([TOKENS.shape[1]], np.int32), np.array([0], np.int32)
    return engine.step(StepInputs(TOKENS, lengths, past), engine.allocate_states(1, 16))[0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["int4", "int8", "fp8", "mxfp4"])
def test_logits(family: str, form: str, tmp_path: Path) -> None:
    folder = quantised(tmp_path, family, form)
    with torch.no_grad():
        expected = their_model(folder)(torch.from_numpy(TOKENS), use_cache=False).logits[0].numpy()
    found = our_logits(folder, tmp_path / "out")
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_of_nvfp4(family: str, tmp_path: Path) -> None:
    """The library rounds a scale, and its products, to bfloat16: two relative errors of 2^-9 at most."""
    folder = quantised(tmp_path, family, "nvfp4")
    theirs = {name.partition("layers.")[2] or name: weight for name, weight in their_model(folder).named_parameters()}
    compared = 0
    for name, weight in dequantized(folder).items():
        if name.endswith("proj.weight"):
            torch.testing.assert_close(theirs[name.partition("layers.")[2]], weight, rtol=2.0**-7, atol=0)
            compared += 1
    assert compared >= 6
