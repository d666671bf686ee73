"""Gemma 3: norms before and after attention and MLP, and sliding windows in most layers, which have their own rotary
embedding."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import FULL, attention_of, check_heads, decoder_of
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope_by_kind import KindRope, ropes_by_kind
from hybridge.exporter.families.sliding_window import SLIDING, layer_windows

ABSENT = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
# One layer in this many has full attention.
ABSENT_PATTERN = 6
ROPES = {FULL: KindRope(1e6, "rope_theta"), SLIDING: KindRope(1e4, "rope_local_base_freq")}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a gemma3_text config."""
    config.fill(ABSENT)
    head_dim, hidden_size = config.positive("head_dim"), config.positive("hidden_size")
    ropes = ropes_by_kind(config, head_dim, ROPES, scaled=FULL)
    scale = config.positive("query_pre_attn_scalar") ** -0.5
    base = attention_of(config, head_dim, None, scale=scale, qk_norm=True, norm_offset=1.0)
    check_heads(config)
    mlp = MlpConfig(config.positive("intermediate_size"), activation_of(config, "hidden_activation"))
    layers = [
        LayerConfig(
            (
                BlockConfig(
                    "input_layernorm",
                    "self_attn",
                    replace(base, rope=ropes[SLIDING if window else FULL], sliding_window=window),
                    output_norm_source="post_attention_layernorm",
                ),
                BlockConfig("pre_feedforward_layernorm", "mlp", mlp, output_norm_source="post_feedforward_layernorm"),
            )
        )
        for window in _windows(config)
    ]
    config.expect("attn_logit_softcapping", (None,), None)
    config.expect("use_bidirectional_attention", (False, None), False)
    # Chooses a cache class of transformers.
    config.expect("cache_implementation", ("hybrid", None), None)
    cap = config.raw("final_logit_softcapping", None)
    return decoder_of(
        config,
        "gemma3_text",
        layers,
        embedding_multiplier=hidden_size**0.5,
        norm_offset=1.0,
        logits_softcap=None if cap is None else config.scalar("final_logit_softcapping", positive=True),
    )


def _windows(config: HfConfig) -> list[int | None]:
    """The sliding window of each layer; without ``layer_types`` every ``sliding_window_pattern``-th has none."""
    window = config.positive("sliding_window")
    pattern = config.positive("sliding_window_pattern", default=ABSENT_PATTERN)
    # transformers writes it beside layer_types, and never reads it.
    if config.raw("layer_types", None) is None:
        config.same(pattern, "sliding_window_pattern", "_sliding_window_pattern")
    config.ignore("_sliding_window_pattern")
    count = config.layer_count()
    kinds = [SLIDING if (index + 1) % pattern else FULL for index in range(count)]
    return layer_windows(config, count, kinds, window)
