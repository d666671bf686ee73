"""LFM3: LFM2 with a norm after every part, a gate for each query head, and sliding windows with their own rotary
embedding in some attention layers."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.common_fields import FULL, decoder_of, head_counts
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.lfm2 import CONV, CONV_NAMES, MLP_NAMES, NORM_EPS
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.recurrent_config import ShortConvConfig
from hybridge.exporter.families.rope_by_kind import KindRope, ropes_by_kind
from hybridge.exporter.families.sliding_window import SLIDING

ABSENT = {
    "vocab_size": 128_000,
    "hidden_size": 2048,
    "intermediate_size": 7680,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "pad_token_id": 124_893,
    "sliding_window": 256,
    "conv_L_cache": 7,
    "tie_word_embeddings": True,
}
# The checkpoint's name of a part.
GATE_NAMES = (("g_proj", "gate_proj"),)
LAYER_KINDS = (CONV, FULL, SLIDING)
ROPES = {
    FULL: KindRope(1e6, "rope_theta", {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5}),
    SLIDING: KindRope(1e6, "rope_theta", {"rope_type": "default", "rope_theta": 1e4}),
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate an lfm3 config."""
    config.fill(ABSENT)
    kinds = _layer_kinds(config)
    head_dim = config.positive("head_dim")
    heads, kv_heads = head_counts(config)
    ropes = ropes_by_kind(config, head_dim, {kind: replace(ROPES[kind], required=kind in kinds) for kind in ROPES})
    window = config.positive("sliding_window", null=None)
    if window is None and SLIDING in kinds:
        raise config.fail("sliding_window", f"a window, because layer_types has {SLIDING}")
    bias, gated = (config.flag(n, default=d) for n, d in (("attention_bias", False), ("use_attention_gate", True)))
    bodies: dict[str, AttentionConfig | ShortConvConfig] = {
        kind: AttentionConfig(
            heads,
            kv_heads,
            head_dim,
            scale=head_dim**-0.5,
            bias=bias,
            output_bias=bias,
            qk_norm=True,
            head_gate=gated,
            sliding_window=window if kind == SLIDING else None,
            rope=rope,
        )
        for kind, rope in ropes.items()
    }
    kernel = config.positive("conv_L_cache")
    bodies[CONV] = ShortConvConfig(config.positive("hidden_size"), kernel, config.flag("conv_bias", default=False))
    mlp = MlpConfig(config.positive("intermediate_size"), "silu")
    behind = config.flag("use_sandwich_norm", default=True)
    feed_forward = BlockConfig(
        "ffn_norm", "feed_forward", mlp, names=MLP_NAMES, output_norm_source="post_ffn_norm" if behind else None
    )
    mixers = {
        kind: BlockConfig(
            "operator_norm",
            "conv" if kind == CONV else "self_attn",
            body,
            names=CONV_NAMES if kind == CONV else GATE_NAMES,
            output_norm_source="post_operator_norm" if behind else None,
        )
        for kind, body in bodies.items()
    }
    return decoder_of(
        config,
        "lfm3",
        [LayerConfig((mixers[kind], feed_forward)) for kind in kinds],
        norm_eps=NORM_EPS,
        norm_eps_field="norm_eps",
        final_norm_source="embedding_norm",
    )


def _layer_kinds(config: HfConfig) -> list[str]:
    """One of LAYER_KINDS for each layer."""
    count, kinds = config.layer_count(), config.array("layer_types", None)
    if kinds is None:
        rest = {2: FULL, 0: SLIDING}
        return [rest.get(index % 4, CONV) if index else CONV for index in range(count)]
    if len(kinds) != count or not all(kind in LAYER_KINDS for kind in kinds):
        raise config.fail("layer_types", f"a list of num_hidden_layers {count} entries of {', '.join(LAYER_KINDS)}")
    return list(kinds)
