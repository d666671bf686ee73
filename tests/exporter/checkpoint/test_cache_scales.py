"""Scales of keys and values in checkpoints: which an export honours, and bad ones are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from hybridge.artifact.errors import CheckpointError, HybridgeError
from hybridge.artifact.safetensors_file import read_safetensors
from hybridge.exporter.cache_factors import cache_factors, check_scales_used
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.checkpoint.quantized.cache_scales import CacheScales
from hybridge.exporter.families.parameters import Parameter
from hybridge.exporter.families.registry import decoder_config
from tests.exporter.checkpoint.folders import single
from tests.support.quantized_checkpoints import pack_quantized
from tests.support.tiny_models import BASE_CONFIGS

MODULE = "model.layers.0.mlp.up_proj"
E4M3_CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}


@pytest.mark.parametrize(
    ("scheme", "last", "words"),
    [
        (E4M3_CACHE, "k_scale", "values in fp8: they get the compute type, .* 8 bits with its k_scale and v_scale$"),
        (E4M3_CACHE, None, "values in fp8: .* 8 bits with a scale for each token and head$"),
        ({"num_bits": 8, "type": "int"}, "v_scale", "values in int8: .* with a scale .*; its v_scale is not used$"),
        ({"num_bits": 8, "type": "int"}, "v_zero_point", "values in int8: they get"),
        (None, "q_scale", "values in 8 bits: .*; its q_scale is not used$"),
    ],
)
def test_scales_of_a_quantised_cache_are_named(
    scheme: dict[str, Any] | None, last: str | None, words: str, tmp_path: Path
) -> None:
    form = pack_quantized(16)
    tensors, _ = form.pack(MODULE, np.ones((8, 32), np.float32))
    tensors["lm_head.weight"] = np.ones((2, 3), np.float32)
    if last is not None:
        tensors[f"model.layers.0.self_attn.{last}"] = np.ones(1, np.float32)
    config = {**form.config, "kv_cache_scheme": scheme}
    checkpoint = open_checkpoint(single(tmp_path / "c", tensors, quantization_config=config))
    assert re.search(words, " ".join(checkpoint.notes)) and checkpoint.tensors.keys() == {
        f"{MODULE}.weight",
        "lm_head.weight",
    }
    assert set(checkpoint.cache_scales.tensors) == (set() if last is None else {f"model.layers.0.self_attn.{last}"})


def test_a_checkpoint_may_quantise_its_cache_alone(tmp_path: Path) -> None:
    config = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": E4M3_CACHE}
    tensors = {f"{MODULE}.weight": np.ones((2, 3), np.float32), "a.k_scale": np.ones((), np.float32)}
    assert open_checkpoint(single(tmp_path / "c", tensors, quantization_config=config)).cache_scales.of_e4m3


@pytest.mark.parametrize(
    ("last", "scales", "words"),
    [
        ("k_scale", [0.0], "expected positive finite scales, found 0.0: the checkpoint is damaged"),
        ("v_scale", [np.nan], "expected positive finite scales, found nan"),
        ("v_scale", [1.0, -np.inf], "expected positive finite scales, found -inf"),
        ("k_scale", [1.0, 1.0, 1.0], r"expected 1 or 2 scales .*, found shape \[3\] of type float32"),
        ("k_proj.k_bias", [0.0], "offsets of keys and values are not supported with `kv_dtype='fp8_e4m3'`"),
    ],
)
def test_bad_scales_of_a_cache_are_refused_by_name(last: str, scales: list[float], words: str, tmp_path: Path) -> None:
    found = scales_of(tmp_path, {f"x.self_attn.{last}": scales})
    with pytest.raises(HybridgeError, match=words) as caught:
        found.factors("x.self_attn", 2)
    assert f"x.self_attn.{last}" in str(caught.value) and "\n" not in str(caught.value)


def scales_of(folder: Path, scales: dict[str, Any]) -> CacheScales:
    arrays = {name: np.array(value, np.float32) for name, value in scales.items()}
    save_file(arrays, folder / "a.safetensors")
    return CacheScales("fp8", read_safetensors(folder / "a.safetensors").tensors)


def test_a_layer_gets_its_own_scales_without_their_powers_of_two(tmp_path: Path) -> None:
    decoder = decoder_config({"model_type": "llama", **BASE_CONFIGS["llama"], "num_hidden_layers": 3})
    parameters = [
        Parameter(f"layers.{i}.blocks.0.body.o_proj.weight", f"m.{i}.attn.o_proj.weight", (8, 8), "") for i in range(3)
    ]
    stored = {"m.0.attn.k_scale": 0.03125, "m.0.attn.v_scale": [4.0], "m.2.attn.v_proj.v_scale": [0.75, 20]}
    scales = scales_of(tmp_path, stored)
    first, second, third = cache_factors(decoder, parameters, scales)
    assert first is None and second is None and third is not None
    np.testing.assert_array_equal(third.keys, [1.0])
    np.testing.assert_array_equal(third.values, [1.5, 1.25])
    assert cache_factors(decoder, parameters, CacheScales("int8", scales.tensors)) == ()
    check_scales_used(decoder, parameters, ("mtp.",), scales_of(tmp_path, {**stored, "mtp.attn.k_scale": 1.5}))
    with pytest.raises(CheckpointError, match=r"of the layers with attention, found m.1.b.v_scale: the config"):
        check_scales_used(decoder, parameters, ("mtp.",), scales_of(tmp_path, {**stored, "m.1.b.v_scale": 1.5}))


def test_layers_that_share_attention_have_scales_of_their_own_or_of_the_stored_one(tmp_path: Path) -> None:
    decoder = decoder_config({"model_type": "llama", **BASE_CONFIGS["llama"], "num_hidden_layers": 3})
    weight = "m.layers.1.attn.o_proj.weight"
    parameters = [Parameter(f"layers.{i}.blocks.0.body.o_proj.weight", weight, (8, 8), "") for i in range(3)]
    scales = scales_of(tmp_path, {"m.layers.1.attn.k_scale": 1.5, "m.layers.2.attn.k_scale": 1.25})
    found = cache_factors(decoder, parameters, scales)
    assert [None if factors is None else factors.keys.tolist() for factors in found] == [[1.5], [1.5], [1.25]]
    check_scales_used(decoder, parameters, (), scales)
