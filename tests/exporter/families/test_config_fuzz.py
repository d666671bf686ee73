"""Damaged configs never end in anything but a typed error; sound ones always describe themselves."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import HybridgeError
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.registry import decoder_config
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.trace.interface import runtime_config
from tests.support.effort import examples
from tests.support.fuzzing import RandomInput, fuzzed
from tests.support.tiny_models import BASE_CONFIGS

ROPE_KEYS = (
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "partial_rotary_factor",
)
EXTRA_FIELDS = (
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "partial_rotary_factor",
    "layer_types",
    "layers_block_type",
    "time_step_limit",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "position_embedding_type",
    "hidden_act",
    "attention_bias",
    "tie_word_embeddings",
    "rms_norm_eps",
    "layer_norm_epsilon",
    "num_local_experts",
    "num_experts",
    "num_experts_per_tok",
    "n_routed_experts",
    "n_group",
    "topk_group",
    "moe_latent_size",
    "decoder_sparse_step",
    "mlp_only_layers",
    "hybrid_override_pattern",
    "model_type",
)
WORDS = ("auto", "silu", "rope", "default", "linear", "llama3", "yarn", "mamba", "M", "ME", "inf", "-", "")


def scalar(random: RandomInput) -> Any:
    kind = random.randrange(5)
    if kind == 0:
        return random.odd_value()
    return (random.randint(-3, 9), random.gauss(0, 1e3), random.choice(WORDS), random.chance(0.5))[kind - 1]


def rope(random: RandomInput) -> dict[str, Any]:
    return {random.choice(ROPE_KEYS): scalar(random) for _ in range(random.randrange(9))}


def value_of(random: RandomInput, field: str) -> Any:
    if field in ("rope_parameters", "rope_scaling") and random.chance(0.8):
        return rope(random)
    if random.chance(0.7):
        return scalar(random)
    return rope(random) if random.chance(0.3) else [scalar(random) for _ in range(random.randrange(6))]


@fuzzed(1500)
def test_damaged_configs_give_typed_errors(random: RandomInput) -> None:
    """A base config with some fields replaced, added or removed."""
    family = random.choice(sorted(BASE_CONFIGS))
    config: dict[str, Any] = {"model_type": family, **BASE_CONFIGS[family]}
    for _ in range(random.randint(1, 4)):
        field = random.choice([*config, *EXTRA_FIELDS])
        if random.chance(0.5) or field not in config:
            config[field] = value_of(random, field)
        else:
            del config[field]
    try:
        decoder = decoder_config(config)
    except HybridgeError as error:
        assert "\n" not in str(error)
        return
    assert isinstance(decoder, DecoderConfig)
    assert decoder.layers


@st.composite
def sound_configs(draw: st.DrawFn) -> dict[str, Any]:
    """Random valid sizes and switches of a family with attention and of one with Mamba2."""
    kv_heads, share, head_dim = draw(st.integers(1, 4)), draw(st.integers(1, 4)), 2 * draw(st.integers(1, 9))
    config: dict[str, Any] = {
        "vocab_size": draw(st.integers(1, 500)),
        "hidden_size": draw(st.integers(1, 99)),
        "num_attention_heads": kv_heads * share,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": draw(st.integers(1, 99)),
        "tie_word_embeddings": draw(st.booleans()),
    }
    if draw(st.booleans()):
        return {**config, "model_type": "qwen3", "num_hidden_layers": draw(st.integers(1, 9))}
    groups = draw(st.integers(1, 4))
    return {
        **config,
        "model_type": "nemotron_h",
        "hybrid_override_pattern": draw(st.text("M*-", min_size=1, max_size=9)),
        "mamba_num_heads": groups * draw(st.integers(1, 4)),
        "mamba_head_dim": draw(st.integers(1, 33)),
        "ssm_state_size": draw(st.integers(1, 65)),
        "n_groups": groups,
        "conv_kernel": draw(st.integers(1, 6)),
        "use_conv_bias": draw(st.booleans()),
        "time_step_limit": [0.0, draw(st.floats(1e-3, 1e3) | st.just(float("inf")))],
    }


@settings(max_examples=examples(200), deadline=None)
@given(sound_configs())
def test_sound_configs_are_described_as_they_are(config: dict[str, Any]) -> None:
    decoder = decoder_config(config)
    pattern = config.get("hybrid_override_pattern") or "*" * config["num_hidden_layers"]
    assert decoder.layer_types == tuple({"M": "mamba", "*": "attention", "-": "mlp"}[c] for c in pattern)
    contract = runtime_config(decoder, ExportOptions(), DType.FLOAT16, ())
    keys = [b for b in contract.bindings.inputs if b.name.startswith("past_key_")]
    expected = ("batch", config["num_key_value_heads"], "max_seq", config["head_dim"])
    assert [b.shape for b in keys] == [expected] * pattern.count("*")
    states = [b for b in contract.bindings.inputs if b.name.startswith("recurrent_state_")]
    assert len(states) == pattern.count("M")
    for state in states:
        assert state.dtype is DType.FLOAT32
        assert state.shape == ("batch", config["mamba_num_heads"], config["mamba_head_dim"], config["ssm_state_size"])
