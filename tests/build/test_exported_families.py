"""Every family from native layers alone: networks that TensorRT-RTX parses, engines that it builds without a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from hybridge.artifact.config import read_config
from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.build.builder import build_engine
from hybridge.trt_plugins.build.model import parser_model
from hybridge.trt_plugins.build.network import layers_of, value_dtypes
from hybridge.trt_plugins.build.options import BuildOptions
from tests.build.parsed import parsed_network
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS, EXPERTS

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("torch", reason="needs the export extra (torch)")
pytest.importorskip("transformers", reason="needs the export extra (transformers)")

OPTIONS = BuildOptions(target="rtx-blackwell", library="tensorrt_rtx", max_batch_size=3, max_seq_len=160, plugins="off")
# As few layers as hold every kind of the family: each recurrent layer takes TensorRT a second or two.
ONE_LAYER = {"num_hidden_layers": 1}
SMALL = {
    "nemotron_h": {**EXPERTS["nemotron_h"], "hybrid_override_pattern": "M-*E"},
    "bailing_hybrid": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "bamba": {"num_hidden_layers": 2, "attn_layer_indices": [1]},
    "granitemoehybrid": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"num_hidden_layers": 2, "attn_layer_period": 2},
    "kimi_linear": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "lfm2": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "gemma3_text": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    "lfm3": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "sliding_attention"]},
    "minimax": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "olmo3": {"num_hidden_layers": 2},
    "gpt_oss": {"num_hidden_layers": 2, "head_dim": 16},
    "qwen3_moe": {"num_hidden_layers": 1, "mlp_only_layers": None},
    "olmo_hybrid": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "recurrent_gemma": {"num_hidden_layers": 2},
    "zamba": {"num_hidden_layers": 2, "layers_block_type": ["hybrid", "hybrid"]},
    "zamba2": {"num_hidden_layers": 2, "layers_block_type": ["linear_attention", "hybrid"]},
    "zaya": {"num_hidden_layers": 2, "layer_types": ["hybrid", "hybrid_sliding"]},
    "qwen3_next": {"num_hidden_layers": 2, "full_attention_interval": 2, "layer_types": None},
    "qwen3_5_moe_text": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_text": {"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]},
}
# Loops behind attention: gated delta rule and experts.
WRITTEN_OUT = (
    "bailing_hybrid",
    "gpt_oss",
    "jamba",
    "kimi_linear",
    "lfm2_moe",
    "minimax",
    "mixtral",
    "nemotron_h",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "zamba",
    "zaya",
)
# Of SMALL, where they are not one.
ATTENTION_LAYERS = {
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2"), 0),
    "gemma3_text": 2,
    "lfm3": 2,
    "olmo3": 2,
    "gpt_oss": 2,
    "zamba": 2,
    "zaya": 2,
}
EXPERT_LAYERS = {
    "bailing_hybrid": 1,
    "gpt_oss": 2,
    "jamba": 1,
    "kimi_linear": 1,
    "lfm2_moe": 1,
    "minimax": 2,
    "mixtral": 1,
    "nemotron_h": 1,
    "qwen3_5_moe_text": 2,
    "qwen3_moe": 1,
    "zaya": 2,
}
# Their keys are the values too.
LATENTS = frozenset({"bailing_hybrid", "kimi_linear"})
# Of the compute; the others are in float16.
DTYPES = {
    "bamba": DType.BFLOAT16,
    "falcon_h1": DType.BFLOAT16,
    "mamba2": DType.FLOAT32,
    "falcon_mamba": DType.BFLOAT16,
    "kimi_linear": DType.BFLOAT16,
    "lfm2_moe": DType.BFLOAT16,
    "olmo3": DType.BFLOAT16,
    "qwen2": DType.BFLOAT16,
    "qwen3": DType.BFLOAT16,
    "olmo_hybrid": DType.FLOAT32,
    "qwen3_5_text": DType.BFLOAT16,
    "smollm3": DType.BFLOAT16,
}
# Engines that a push builds: experts and attention; test_build_engine.py builds Mamba2.
BUILT_ON_PUSH = ("qwen3_moe",)


def exported(artifacts: ArtifactCache, family: str) -> Path:
    limits = {"max_batch_size": OPTIONS.max_batch_size, "max_seq_len": OPTIONS.max_seq_len}
    return artifacts.get(
        family, "float32", SMALL.get(family, ONE_LAYER), dtype=DTYPES.get(family, DType.FLOAT16), **limits
    ).folder


def check_layers(layers: Mapping[str, int], family: str) -> None:
    """Attention and its caches are layers of TensorRT's own; nothing is left to plugins."""
    attention = ATTENTION_LAYERS.get(family, 1)
    assert layers.get("ATTENTION_INPUT", 0) == (0 if family in WRITTEN_OUT else attention)
    assert layers.get("KV_CACHE_UPDATE", 0) == attention * (1 if family in LATENTS else 2)
    assert not [name for name in layers if name.startswith("PLUGIN")]


# On push each operator; the engines below are those of the others.
@pytest.mark.parametrize(
    "family", sample(BASE_CONFIGS, on_push=("bamba", "lfm2", "qwen3", "qwen3_5_moe_text", "qwen3_next"))
)
def test_network(artifacts: ArtifactCache, family: str) -> None:
    out = exported(artifacts, family)
    model = parser_model(out, read_config(out), OPTIONS.max_seq_len)
    with parsed_network(out, model) as network:
        check_layers(Counter(layer.type.name for layer in layers_of(network)), family)
        assert value_dtypes(network, model.fp32_values) == dict.fromkeys(model.fp32_values, "float32")
    # What the operators declare as float32: A or the decay of each recurrent layer, the weights of chosen experts.
    recurrent = _recurrent(out)
    assert len(model.fp32_values) == recurrent + EXPERT_LAYERS.get(family, 0)


@pytest.mark.parametrize("family", sample(BASE_CONFIGS, BUILT_ON_PUSH))
def test_engine(artifacts: ArtifactCache, family: str) -> None:
    out = exported(artifacts, family)
    record = build_engine(out, OPTIONS)
    check_layers(record.layers, family)
    assert not record.plugins and record.plugins.reason == "plugins are off"
    assert sum(entry["name"].startswith("recurrent_state") for entry in record.bindings) == _recurrent(out)


def _recurrent(out: Path) -> int:
    """The recurrent states of the artifact, which have one layer each."""
    return sum(binding.name.startswith("recurrent_state") for binding in read_config(out).bindings.states)
