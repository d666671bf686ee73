"""gpt-oss: attention with sinks, every second layer in a sliding window, and experts with biases and a clamped gate."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.common_fields import FULL, attention_of, decoder_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MoeConfig
from hybridge.exporter.families.moe_fields import ROUTER_TRAINING_FIELDS, top_k_of
from hybridge.exporter.families.rope import fill_rope, rope_from_config
from hybridge.exporter.families.sliding_window import SLIDING, layer_windows

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "num_hidden_layers num_local_experts intermediate_size head_dim num_attention_heads num_key_value_heads "
    "max_position_embeddings num_experts_per_tok",
    "int?": "sliding_window",
    "str": "hidden_act",
    "float": "rms_norm_eps swiglu_alpha swiglu_limit router_aux_loss_coef",
    "object?": "rope_parameters",
    "number": "attention_dropout",
    "bool": "output_router_logits attention_bias",
    "[str]?": "layer_types",
}
ABSENT = {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "attention_bias": True,
}
ABSENT_EXPERTS, ABSENT_TOP_K, ABSENT_THETA = 128, 4, 150000.0
ABSENT_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a gpt_oss config."""
    config.fill(ABSENT)
    fill_rope(config, ABSENT_ROPE)
    head_dim, count = config.positive("head_dim"), config.layer_count()
    rope = rope_from_config(config, head_dim, absent_theta=ABSENT_THETA)
    base = attention_of(config, head_dim, rope, sinks=True)
    kinds = [FULL if index % 2 else SLIDING for index in range(count)]
    windows = layer_windows(config, count, kinds, config.positive("sliding_window", null=None))
    moe = _experts(config)
    # Of published configs; transformers reads original_max_position_embeddings.
    config.ignore("initial_context_length")
    layers = [layer_of("self_attn", replace(base, sliding_window=window), moe) for window in windows]
    return decoder_of(config, "gpt_oss", layers, norm_eps=1e-5)


def _experts(config: HfConfig) -> MoeConfig:
    """The experts; the activation is fixed, with two constants that the config gives."""
    names = ("num_local_experts", "num_experts")
    experts = config.positive(*names, default=ABSENT_EXPERTS)
    config.expect("hidden_act", ("silu", "swish"), "silu")
    config.ignore(*ROUTER_TRAINING_FIELDS)
    top_k = top_k_of(config, experts, ABSENT_TOP_K, config.name_of(*names))
    config.same(top_k, "num_experts_per_tok", "experts_per_token")
    return MoeConfig(
        num_experts=experts,
        top_k=top_k,
        intermediate_size=config.positive("intermediate_size"),
        activation="silu",
        layout="gpt_oss",
        router="top_k_softmax",
        biased=True,
        alpha=config.scalar("swiglu_alpha", default=1.702),
        limit=config.scalar("swiglu_limit", default=7.0, positive=True),
        offset=1.0,
    )
