"""Qwen3-Next and the text model of Qwen3.5: gated delta net or gated attention, each followed by a gated MLP."""

from __future__ import annotations

from artifact.errors import UnsupportedError
from exporter.models.decoder_config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    GatedDeltaConfig,
    LayerConfig,
    MlpConfig,
)
from exporter.models.hf_config import HfConfig
from exporter.models.mamba_fields import ACTIVATIONS, CONV_ACTIVATIONS, head_counts
from exporter.models.rope import rope_from_config

ABSENT_HEAD_DIM, ABSENT_INTERVAL = 256, 4
PARTIAL_ROTARY = 0.25
# transformers builds this many experts where the config does not say.
ABSENT_EXPERTS = 512
LAYER_KINDS = ("linear_attention", "full_attention")
# Fields of the experts and of training.
EXPERT_FIELDS = (
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_experts_per_tok",
    "output_router_logits",
    "router_aux_loss_coef",
    "shared_expert_intermediate_size",
)


def parse_qwen3_next(config: HfConfig) -> DecoderConfig:
    """Translate a qwen3_next config."""
    kinds = _layer_kinds(config)
    feed_forward = _feed_forward(config, len(kinds))
    return _decoder(config, "qwen3_next", kinds, _attention(config, 2), _mixer(config, "fused"), feed_forward)


def parse_qwen3_5(config: HfConfig) -> DecoderConfig:
    """Translate a qwen3_5_text config."""
    kinds = _layer_kinds(config)
    mlp = MlpConfig(config.positive("intermediate_size"), config.expect("hidden_act", ACTIVATIONS, "silu"))
    return _decoder(config, "qwen3_5_text", kinds, _attention(config, 4), _mixer(config, "split"), [mlp] * len(kinds))


def _decoder(
    config: HfConfig,
    model_type: str,
    kinds: list[str],
    attention: AttentionConfig,
    mixer: GatedDeltaConfig,
    feed_forward: list[MlpConfig],
) -> DecoderConfig:
    layers = tuple(
        LayerConfig(
            (
                BlockConfig("input_layernorm", "self_attn", attention)
                if kind == "full_attention"
                else BlockConfig("input_layernorm", "linear_attn", mixer),
                BlockConfig("post_attention_layernorm", "mlp", mlp),
            )
        )
        for kind, mlp in zip(kinds, feed_forward, strict=True)
    )
    return DecoderConfig(
        model_type=model_type,
        vocab_size=config.positive("vocab_size"),
        hidden_size=config.positive("hidden_size"),
        layers=layers,
        norm_eps=config.scalar("rms_norm_eps", default=1e-6, positive=True),
        norm_offset=1.0,
        embedding_sources=("embed_tokens.weight",),
        final_norm_source="norm",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        max_position_embeddings=config.positive("max_position_embeddings", default=None),
        ignored_sources=("mtp.",),
    )


def _attention(config: HfConfig, absent_kv_heads: int) -> AttentionConfig:
    heads, kv_heads = head_counts(config, absent_kv_heads)
    head_dim = config.positive("head_dim", default=ABSENT_HEAD_DIM)
    bias = config.flag("attention_bias", default=False)
    return AttentionConfig(
        heads,
        kv_heads,
        head_dim,
        scale=head_dim**-0.5,
        bias=bias,
        output_bias=bias,
        qk_norm=True,
        norm_offset=1.0,
        output_gate=True,
        rope=rope_from_config(config, head_dim, PARTIAL_ROTARY, partial=True),
    )


def _mixer(config: HfConfig, projections: str) -> GatedDeltaConfig:
    key_heads = config.positive("linear_num_key_heads", default=16)
    value_heads = config.positive("linear_num_value_heads", default=32)
    if value_heads % key_heads:
        raise config.fail("linear_num_key_heads", f"a divisor of linear_num_value_heads {value_heads}")
    # The convolution has the activation of the MLP; the operator fuses SiLU.
    config.expect("hidden_act", CONV_ACTIVATIONS, "silu")
    return GatedDeltaConfig(
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_size=config.positive("linear_key_head_dim", default=128),
        value_size=config.positive("linear_value_head_dim", default=128),
        conv_kernel=config.positive("linear_conv_kernel_dim", default=4),
        projections=projections,
    )


def _layer_kinds(config: HfConfig) -> list[str]:
    count = config.layer_count()
    interval = config.positive("full_attention_interval", default=ABSENT_INTERVAL)
    kinds = config.array("layer_types", None)
    if kinds is None:
        kinds = ["full_attention" if (index + 1) % interval == 0 else "linear_attention" for index in range(count)]
    for index, kind in enumerate(kinds):
        if kind not in LAYER_KINDS:
            raise config.fail("layer_types", f"{' or '.join(LAYER_KINDS)} for layer {index} (found {kind!r})")
    if len(kinds) != count:
        raise config.fail("layer_types", f"a list of {count} entries")
    return list(kinds)


def _feed_forward(config: HfConfig, count: int) -> list[MlpConfig]:
    """The MLP of every layer; UnsupportedError when a layer has experts."""
    experts = config.integer("num_experts", ABSENT_EXPERTS, minimum=0)
    every = config.positive("decoder_sparse_step", default=1)
    plain = config.array("mlp_only_layers", None) or []
    sparse = [index for index in range(count) if experts and index not in plain and (index + 1) % every == 0]
    if sparse:
        raise UnsupportedError(
            f"config.json: num_experts: supported are layers without experts, found {experts} experts in layer "
            f"{sparse[0]}"
        )
    config.ignore(*EXPERT_FIELDS)
    mlp = MlpConfig(config.positive("intermediate_size"), config.expect("hidden_act", ACTIVATIONS, "silu"))
    return [mlp] * count
