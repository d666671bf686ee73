"""Granite 4 hybrid without experts: Mamba2 or attention, then a shared MLP; multipliers on every path."""

from __future__ import annotations

from artifact.errors import UnsupportedError
from exporter.models.decoder_config import AttentionConfig, BlockConfig, DecoderConfig, LayerConfig, MlpConfig
from exporter.models.hf_config import HfConfig
from exporter.models.mamba_fields import head_counts, head_dim_of, mamba_d_mixer
from exporter.models.rope import ROPE_FIELDS, rope_from_config

# transformers builds this many experts where the config does not say; hence the field is needed.
ABSENT_EXPERTS = 8
LAYER_KINDS = {"mamba": False, "linear_attention": False, "attention": True, "full_attention": True}

# Fields of the experts and of training.
UNUSED_FIELDS = (
    "init_method",
    "intermediate_size",
    "num_experts_per_tok",
    "output_router_logits",
    "router_aux_loss_coef",
)


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a granitemoehybrid config; UnsupportedError when it has experts."""
    experts = config.integer("num_local_experts", ABSENT_EXPERTS)
    if experts:
        raise UnsupportedError(f"config.json: num_local_experts: supported is 0 (no experts), found {experts}")
    hidden_size = config.positive("hidden_size")
    mamba = mamba_d_mixer(config, hidden_size)
    attention = _attention(config, hidden_size)
    mlp = MlpConfig(config.positive("shared_intermediate_size"), "silu", "fused")
    config.expect("normalization_function", ("rmsnorm",), "rmsnorm")
    config.ignore(*UNUSED_FIELDS)
    shared = BlockConfig("post_attention_layernorm", "shared_mlp", mlp)
    layers = tuple(
        LayerConfig(
            (
                BlockConfig("input_layernorm", "self_attn", attention)
                if is_attention
                else BlockConfig("input_layernorm", "mamba", mamba),
                shared,
            )
        )
        for is_attention in _attention_layers(config)
    )
    return DecoderConfig(
        model_type="granitemoehybrid",
        vocab_size=config.positive("vocab_size"),
        hidden_size=hidden_size,
        layers=layers,
        norm_eps=config.scalar("rms_norm_eps", default=1e-6, positive=True),
        embedding_sources=("embed_tokens.weight",),
        final_norm_source="norm",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        max_position_embeddings=config.positive("max_position_embeddings", default=None),
        embedding_multiplier=config.scalar("embedding_multiplier", default=1.0),
        residual_multiplier=config.scalar("residual_multiplier", default=1.0),
        logits_scaling=config.scalar("logits_scaling", default=1.0, positive=True),
    )


def _attention(config: HfConfig, hidden_size: int) -> AttentionConfig:
    heads, kv_heads = head_counts(config)
    head_dim = head_dim_of(config, hidden_size, heads)
    bias = config.flag("attention_bias", default=False)
    embedding = config.expect("position_embedding_type", (None, "nope", "rope"), None)
    if embedding == "rope":
        rope = rope_from_config(config, head_dim)
    else:
        rope = None
        config.ignore(*ROPE_FIELDS)
    return AttentionConfig(
        heads,
        kv_heads,
        head_dim,
        scale=config.scalar("attention_multiplier", default=1.0),
        bias=bias,
        output_bias=bias,
        rope=rope,
    )


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
        raise config.fail(name, f"a list of {count} layer types among {', '.join(LAYER_KINDS)}")
    return [LAYER_KINDS[k] for k in kinds]
