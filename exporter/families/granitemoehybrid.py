"""Granite 4 hybrid: Mamba2 or attention, then a shared MLP, with or without experts; multipliers on every path."""

from __future__ import annotations

from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.common_fields import attention_of, decoder_of, head_dim_of, mamba_d_mixer
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig, MoeConfig
from hybridge.exporter.families.moe_fields import ROUTER_TRAINING_FIELDS, top_k_of
from hybridge.exporter.families.rope import ROPE_FIELDS, rope_from_config

# transformers builds this many experts, and asks this many of them, where the config does not say.
ABSENT_EXPERTS, ABSENT_TOP_K, ABSENT_EXPERT_SIZE = 8, 2, 11008
LAYER_KINDS = {"mamba": False, "linear_attention": False, "attention": True, "full_attention": True}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a granitemoehybrid config."""
    mixers = {
        False: BlockConfig("input_layernorm", "mamba", mamba_d_mixer(config)),
        True: BlockConfig("input_layernorm", "self_attn", _attention(config)),
    }
    config.expect("normalization_function", ("rmsnorm",), "rmsnorm")
    config.ignore("init_method", *ROUTER_TRAINING_FIELDS)
    feed_forward = _feed_forward(config)
    return decoder_of(
        config,
        "granitemoehybrid",
        [LayerConfig((mixers[is_attention], feed_forward)) for is_attention in _attention_layers(config)],
        embedding_multiplier=config.scalar("embedding_multiplier", default=1.0),
        residual_multiplier=config.scalar("residual_multiplier", default=1.0),
        logits_scaling=config.scalar("logits_scaling", default=1.0, positive=True),
    )


def _feed_forward(config: HfConfig) -> BlockConfig:
    """The shared MLP, and experts where there are any; both belong to the layer itself."""
    norm, shared = "post_attention_layernorm", MlpConfig(config.positive("shared_intermediate_size"), "silu", "fused")
    experts = config.integer("num_local_experts", ABSENT_EXPERTS, minimum=0)
    if not experts:
        config.ignore("intermediate_size", "num_experts_per_tok")
        # There is no router whose logits transformers could return.
        config.expect("output_router_logits", (None, False), False)
        return BlockConfig(norm, "shared_mlp", shared)
    moe = MoeConfig(
        num_experts=experts,
        top_k=top_k_of(config, experts, ABSENT_TOP_K, "num_local_experts"),
        intermediate_size=config.positive("intermediate_size", default=ABSENT_EXPERT_SIZE),
        activation="silu",
        layout="granite",
        router="top_k_softmax",
        shared=shared,
    )
    return BlockConfig(norm, "", moe)


def _attention(config: HfConfig) -> AttentionConfig:
    head_dim = head_dim_of(config)
    if config.expect("position_embedding_type", (None, "nope", "rope"), None) == "rope":
        rope = rope_from_config(config, head_dim)
    else:
        rope = None
        config.ignore(*ROPE_FIELDS)
    scale = config.scalar("attention_multiplier", default=1.0, null=head_dim**-0.5, positive=True)
    return attention_of(config, head_dim, rope, scale=scale)


def _attention_layers(config: HfConfig) -> list[bool]:
    count = config.layer_count()
    name = config.name_of("layer_types", "layers_block_type")
    kinds = config.raw(name, None)
    if kinds is None:
        return [False] * count
    if (
        not isinstance(kinds, list)
        or len(kinds) != count
        or not all(isinstance(k, str) and k in LAYER_KINDS for k in kinds)
    ):
        raise config.fail(
            name, f"a list of num_hidden_layers {count} layer types, each one of {', '.join(LAYER_KINDS)}"
        )
    return [LAYER_KINDS[k] for k in kinds]
