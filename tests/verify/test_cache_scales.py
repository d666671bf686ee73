"""FP8 keys and values are rounded with the scales that a quantised checkpoint stores for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.verification.options import VerifyOptions
from hybridge.verification.verifier import verify
from tests.support.effort import sample
from tests.support.quantized_checkpoints import Arrays, eight_bits, save_quantized

ATTENTION = "model.layers.0.self_attn"
SHARED, OTHER = (f"model.layers.{layer}.shared_transformer.self_attn" for layer in (0, 2))
WINDOW = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1, "num_hidden_layers": 1}
SIZES = {"head_dim": 64, "linear_key_head_dim": 64, "linear_value_head_dim": 64}  # those that kernels have
LLAMA = {"num_hidden_layers": 1, "head_dim": 64}  # the size that kernels have
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, list[float]]]] = {
    "one": ("qwen3", WINDOW, ATTENTION, {"k_scale": [0.0137], "v_scale": [0.0301]}),
    "by head": ("llama", LLAMA, ATTENTION, {"k_scale": [0.011, 0.023], "v_scale": [0.017, 0.005]}),
    "of values": (
        "nemotron_h",
        {"hybrid_override_pattern": "M*-"},
        "backbone.layers.1.mixer",
        {"v_proj.v_scale": [1.7]},
    ),
    "of a shared block": ("zamba2", {}, SHARED, {"k_scale": [0.013], "v_scale": [0.031]}),
    "of each user of a block": ("zamba2", {}, SHARED, {"k_scale": [0.013], f"{OTHER}.v_scale": [0.019]}),
    "of a head": (
        "qwen3_next",
        {"mtp": True, **SIZES},
        "mtp.layers.0.self_attn",
        {"k_scale": [0.013], "v_scale": [1.9]},
    ),
    "of a head's mixer": (
        *("nemotron_h", {"mtp": True, "pattern": "-*", "hybrid_override_pattern": "M*-"}, "mtp.layers.1.mixer"),
        {"k_proj.k_scale": [0.7], "backbone.layers.1.mixer.v_proj.v_scale": [0.3]},
    ),
    "of latents": ("kimi_linear", {}, "model.layers.1.self_attn", {"k_scale": [0.7]}),
}
ENGINES = [(name, engine) for name in CASES for engine in ("auto", "torch")]
ENGINES += [("by head", "tensorrt-network"), ("of a head", "tensorrt-network")]
FP8 = ExportOptions(layout="paged", kv_dtype="fp8_e4m3", max_batch_size=3, max_seq_len=96, dtype=DType.FLOAT32)


def saved(folder: Path, family: str, overrides: dict[str, Any], attention: str, scales: dict[str, list[float]]) -> Path:
    """A checkpoint with ``scales`` by their whole names or what follows ``attention`` in them."""
    form = eight_bits("int", "channel")

    def pack(module: str, matrix: np.ndarray) -> tuple[Arrays, np.ndarray]:
        tensors, meant = form.pack(module, matrix)
        if module == f"{attention}.o_proj":
            arrays = {name: np.array(value, np.float32) for name, value in scales.items()}
            tensors |= {n if "layers." in n else f"{attention}.{n}": array for n, array in arrays.items()}
        return tensors, meant

    checkpoint, _ = save_quantized(folder, family, replace(form, pack=pack), dtype="float32", **overrides)
    assert len(open_checkpoint(checkpoint).cache_scales.tensors) == len(scales)
    return checkpoint


@pytest.mark.parametrize(("name", "engine"), sample(ENGINES, ()))
def test_the_reference_rounds_with_the_same_scales(name: str, engine: str, tmp_path: Path) -> None:
    checkpoint = saved(tmp_path / "c", *CASES[name])
    network = engine == "tensorrt-network"  # its plugins need 16-bit types
    export_checkpoint(checkpoint, tmp_path / "out", replace(FP8, dtype=DType.FLOAT16) if network else FP8)
    options = VerifyOptions(engine=engine, prompt_lengths=(1, 7, 33), decode_steps=3, float32=network)
    report = verify(checkpoint, tmp_path / "out", options)
    assert report.passed, report.verdict()
    assert bool(report.head_layer_types) == name.startswith("of a head")
    median = float(np.median([c.error for c in report.comparisons if c.error is not None]))
    assert median < (1e-3 if network else 1e-5)


@pytest.mark.slow
def test_other_scales_are_noticed(tmp_path: Path) -> None:
    family, overrides, attention, scales = CASES["one"]
    checkpoint = saved(tmp_path / "c", family, overrides, attention, scales)
    export_checkpoint(checkpoint, tmp_path / "out", FP8)
    other = saved(tmp_path / "other", family, overrides, attention, {**scales, "v_scale": [0.04]})
    report = verify(other, tmp_path / "out", VerifyOptions(prompt_lengths=(7,), decode_steps=1))
    assert {c.item for c in report.comparisons if not c.passed} >= {"value"}
