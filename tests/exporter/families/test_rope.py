"""Rotary frequencies against transformers' own tables, in both config styles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bamba.modeling_bamba import BambaRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from hybridge.artifact.errors import HybridgeError, UnsupportedError
from hybridge.exporter.families.attention_config import RopeConfig
from hybridge.exporter.families.registry import decoder_config
from hybridge.exporter.families.rope_length import at_length
from tests.support.tiny_models import BASE_CONFIGS

# A realistic head: 64 frequencies reach every branch of the piecewise formulas.
HEADS = {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128}
BAMBA_HEADS = {**HEADS, "mamba_n_heads": 8, "mamba_d_head": 128}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 2048}
LONG = {
    "short_factor": [1 + i / 64 for i in range(64)],
    "long_factor": [1 + i / 4 for i in range(64)],
    "original_max_position_embeddings": 64,
}
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("default", {}),
    ("linear", {"factor": 2.5}),
    ("llama3", LLAMA3),
    ("llama3", {**LLAMA3, "factor": 32.0, "low_freq_factor": 1.5}),
    ("yarn", YARN),
    ("yarn", {**YARN, "beta_fast": 16.0, "beta_slow": 2.0}),
    ("yarn", {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}),
    ("yarn", {**YARN, "factor": 1.0}),
    ("yarn", {**YARN, "attention_factor": 0.77}),
    ("yarn", {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}),
    ("yarn", {**YARN, "mscale": 0.7}),
    ("yarn", {**YARN, "mscale": 0.0, "mscale_all_dim": 0.0}),
    ("yarn", {"factor": 4.0}),
    ("dynamic", {"factor": 2.0}),
    *(("longrope", {**LONG, **own}) for own in ({}, {"factor": 2.0}, {"factor": 0.5}, {"attention_factor": 1.3})),
]


def rope_of(model_type: str, **fields: Any) -> RopeConfig:
    heads = HEADS if model_type != "bamba" else BAMBA_HEADS
    decoder = decoder_config({"model_type": model_type, **BASE_CONFIGS[model_type], **heads, **fields})
    rope = decoder.attention_bodies[0].rope
    assert rope is not None
    return rope


def tables_of_transformers(kind: str, parameters: dict[str, Any]) -> tuple[np.ndarray, float]:
    config = AutoConfig.for_model("llama", **{**BASE_CONFIGS["llama"], **HEADS}, rope_parameters=parameters)
    compute = ROPE_INIT_FUNCTIONS.get(kind, LlamaRotaryEmbedding.compute_default_rope_parameters)
    frequencies, scaling = compute(config)
    return frequencies.numpy(), scaling


@pytest.mark.parametrize(("kind", "parameters"), ROWS, ids=str)
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_frequencies_equal_transformers(model_type: str, kind: str, parameters: dict[str, Any]) -> None:
    ours = rope_of(model_type, rope_parameters={"rope_type": kind, "rope_theta": 5e5, **parameters})
    expected, scaling = tables_of_transformers(kind, {"rope_type": kind, "rope_theta": 5e5, **parameters})
    # transformers computes in float32, the smoothing of llama3 with cancellation.
    np.testing.assert_allclose(np.array(ours.inv_freq), expected, rtol=5e-6)
    assert ours.attention_scaling == pytest.approx(scaling, rel=1e-12)


@pytest.mark.parametrize("model_type", ["llama", "phi3"])
def test_an_artifact_of_long_sequences_has_the_long_factors(model_type: str) -> None:
    parameters = {"rope_type": "longrope", "rope_theta": 5e5, **LONG}
    fields = {**BASE_CONFIGS[model_type], **HEADS, "original_max_position_embeddings": 64}
    if model_type == "llama":
        del fields["original_max_position_embeddings"]
    decoder = decoder_config({"model_type": model_type, **fields, "rope_parameters": parameters})
    config = AutoConfig.for_model("llama", **{**BASE_CONFIGS["llama"], **HEADS}, rope_parameters=dict(parameters))
    for tokens in (64, 65, 512):
        expected, scaling = ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=tokens)
        changed = at_length(decoder, tokens)
        (rope,) = changed.ropes
        np.testing.assert_allclose(np.array(rope.inv_freq), expected.numpy(), rtol=5e-6)
        assert rope.attention_scaling == pytest.approx(scaling)
        assert bool(changed.notes) == (tokens > 64)


def test_frequencies_that_change_with_every_token_are_refused() -> None:
    fields = {**BASE_CONFIGS["llama"], "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}
    decoder = decoder_config({"model_type": "llama", **fields})
    assert at_length(decoder, 512) is decoder
    with pytest.raises(UnsupportedError, match="at most max_position_embeddings 512 tokens, found 513"):
        at_length(decoder, 513)


@pytest.mark.parametrize(("kind", "parameters"), ROWS, ids=str)
def test_both_config_styles_mean_the_same(kind: str, parameters: dict[str, Any]) -> None:
    new = rope_of("llama", rope_parameters={"rope_type": kind, "rope_theta": 1234.5, **parameters})
    for spelling in ("type", "rope_type"):
        old = None if kind == "default" and spelling == "type" else {spelling: kind, **parameters}
        assert rope_of("llama", rope_theta=1234.5, rope_scaling=old) == new


def test_theta_has_the_default_of_transformers() -> None:
    assert rope_of("llama") == rope_of("llama", rope_theta=10000.0) == rope_of("llama", rope_scaling=None)


@pytest.mark.parametrize("factor", [None, 0.25, 0.5, 1.0])
def test_partial_rotary_of_bamba(factor: float | None) -> None:
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4}
    if factor is not None:
        parameters["partial_rotary_factor"] = factor
    ours = rope_of("bamba", rope_parameters=parameters)
    config = AutoConfig.for_model("bamba", **{**BASE_CONFIGS["bamba"], **BAMBA_HEADS}, rope_parameters=dict(parameters))
    expected, _ = BambaRotaryEmbedding.compute_default_rope_parameters(config)
    assert ours.rotary_dim == int(128 * (0.5 if factor is None else factor))
    np.testing.assert_allclose(np.array(ours.inv_freq), expected.numpy(), rtol=2e-6)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": None}},
        "original_max_position_embeddings",
    ),
    ("llama", {"head_dim": 2**30}, "head_dim"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic"}}, "factor"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "head_dim": 2}, "rope_type"),
    ("llama", {"rope_scaling": {"type": "longrope", "factor": 2.0}}, "short_factor"),
    ("llama", {"rope_parameters": {"rope_type": "longrope", **LONG, "long_factor": [1.0]}}, "long_factor"),
    ("llama", {"rope_parameters": {"rope_type": "longrope", **LONG, "short_factor": [0.0] * 64}}, "short_factor"),
    ("phi3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_type"),
    ("llama", {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, "rope_type"),
    ("llama", {"rope_parameters": {"rope_type": ["linear"]}}, "rope_type"),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}, "factor"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor"),
    ("llama", {"rope_parameters": {"rope_type": "default", "factor": 2.0}}, "factor"),
    ("llama", {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 2]}}, "mrope_section"),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": -5.0}}, "rope_theta"),
    ("llama", {"rope_parameters": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
    ("llama", {"rope_parameters": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 0}}, "low_freq_factor"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", **YARN, "rope_theta": 1}}, "rope_theta"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", **YARN, "truncate": "no"}}, "truncate"),
    ("llama", {"rope_parameters": [1]}, "rope_parameters"),
    ("llama", {"rope_theta": "big"}, "rope_theta"),
    ("llama", {"rope_theta": 0}, "rope_theta"),
    ("llama", {"rope_theta": 1e-300}, "rope_theta"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 1e-320}}, "frequencies"),
    ("llama", {"rope_parameters": {"rope_type": "llama3", **LLAMA3, "factor": 1e-320}}, "frequencies"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", **YARN, "beta_fast": 1e308}}, "beta_fast"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", **YARN, "mscale": 1e308, "mscale_all_dim": -1e9}},
        "frequencies",
    ),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("qwen3", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ("bamba", {"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
    ("bamba", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.5}}, "partial_rotary_factor"),
    ("bamba", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1e308}}, "partial_rotary_factor"),
    ("bamba", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.075}}, "partial_rotary_factor"),
    (
        "llama",
        {"rope_parameters": {"rope_theta": 5.0}, "rope_scaling": {"type": "linear", "factor": 2}},
        "rope_scaling",
    ),
]


@pytest.mark.parametrize(("model_type", "fields", "named"), REFUSED, ids=str)
def test_what_cannot_be_honoured_is_refused_by_name(model_type: str, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(HybridgeError, match=named):
        rope_of(model_type, **fields)
