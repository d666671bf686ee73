"""The random checkpoint is one that transformers loads completely."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks.artifacts import exported, touched_bytes_per_token
from benchmarks.int4_checkpoint import write_int4_checkpoints
from benchmarks.random_checkpoint import (
    DECODE_MODEL,
    EXPORT_MODEL,
    FALCON_H1_MODEL,
    GPU_MODEL,
    LFM2_MODEL,
    MAMBA_MODEL,
    Config,
    nemotron_h,
    write_random_checkpoint,
)
from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_file import read_safetensors
from hybridge.runtime.engines import create_dense_engine
from tests.benchmarks.shapes import TINY
from tools.published_configs import PUBLISHED
from tools.sparse_checkpoint import tensors_of_config

QWEN3_5 = {
    **PUBLISHED["Qwen3.5-27B"]["text_config"], "model_type": "qwen3_5_text", "tie_word_embeddings": True,
    "vocab_size": 90, "hidden_size": 32, "intermediate_size": 40, "head_dim": 16, "num_hidden_layers": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"], "num_attention_heads": 8, "num_key_value_heads": 2,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
}  # fmt: skip


@pytest.mark.parametrize("model", [TINY, QWEN3_5], ids=["nemotron_h", "qwen3_5_text"])
def test_transformers_finds_every_tensor_and_no_other(model: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_random_checkpoint(tmp_path / "c", model)
    _, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "c", output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_values_are_finite_and_rows_differ(tmp_path: Path) -> None:
    nbytes = write_random_checkpoint(tmp_path / "c", TINY)
    file = read_safetensors(tmp_path / "c" / "model.safetensors")
    assert nbytes == file.nbytes
    for name, slot in file.tensors.items():
        value = slot.map().astype(np.float64)
        assert np.isfinite(value).all(), name
        assert slot.dtype is (DType.FLOAT32 if name.endswith(("A_log", ".D", "dt_bias")) else DType.BFLOAT16)
        if value.ndim == 2:
            assert len(np.unique(value, axis=0)) == len(value), name


def parameters(config: Config) -> int:
    return sum(math.prod(size) for _, size in tensors_of_config(config).values())


def test_the_sizes_are_those_announced() -> None:
    assert 1.65e9 < 2 * parameters(EXPORT_MODEL) < 1.75e9
    assert 145e6 < parameters(DECODE_MODEL) < 155e6
    assert 125e6 < parameters(MAMBA_MODEL) < 135e6
    assert all(145e6 < parameters(model) < 155e6 for model in (LFM2_MODEL, FALCON_H1_MODEL))
    assert 2.6e9 < parameters(GPU_MODEL) < 2.7e9
    assert (EXPORT_MODEL["num_hidden_layers"], DECODE_MODEL["num_hidden_layers"]) == (20, 24)


def test_traffic_counts_weights_once_and_states_twice(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "c", TINY)
    with_lm_head = parameters(TINY) - 97 * 48
    states = 2 * (6 * 16 * 24 + (6 * 16 + 2 * 3 * 24) * 4)
    engine = create_dense_engine(exported(tmp_path / "c", tmp_path / "out", max_batch_size=1))
    assert touched_bytes_per_token(tmp_path / "c", engine.config) == 4 * (with_lm_head + 2 * states)


def test_both_checkpoints_of_a_model_hold_the_same_numbers(tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "vocab_size": 40, "mamba_num_heads": 4, "n_groups": 2}
    plain, quantized = tmp_path / "plain", tmp_path / "quantized"
    write_int4_checkpoints(plain, quantized, nemotron_h("M*", **sizes, num_attention_heads=1, num_key_value_heads=1))
    numbers, stored = load_file(plain / "model.safetensors"), load_file(quantized / "model.safetensors")
    packed = {name.removesuffix("_packed") for name in stored if name.endswith("_packed")}
    assert "lm_head.weight" in packed and numbers.keys() == packed | (stored.keys() & numbers.keys())
    for name, value in numbers.items():
        if name not in packed:
            assert np.array_equal(value, stored[name])
            continue
        words = stored[f"{name}_packed"].view(np.uint32)
        codes = ((words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15).reshape(value.shape)
        scales = stored[f"{name}_scale"].astype(np.float32).repeat(128, axis=1)
        assert np.array_equal(value.astype(np.float32), (codes.astype(np.float32) - 8) * scales)
        assert len(np.unique(codes)) == 15
