"""LFM2: gated short convolutions and attention with a norm on every query and key head, each before a gated MLP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.common_fields import FULL, decoder_of, head_counts, head_dim_of, layer_kinds
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig, MoeConfig
from hybridge.exporter.families.recurrent_config import ShortConvConfig
from hybridge.exporter.families.rope import rope_from_config

CONV = "conv"
ABSENT_KV_HEADS, ABSENT_INTERMEDIATE_SIZE, ABSENT_THETA, NORM_EPS = 8, 12288, 1e6, 1e-5
# The checkpoint's names of parts of the layers.
ATTENTION_NAMES = (("o_proj", "out_proj"), ("q_norm", "q_layernorm"), ("k_norm", "k_layernorm"))
CONV_NAMES = (("conv1d", "conv"),)
MLP_NAMES = (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))
# Fields of the original configs.
TRAINING_FIELDS = (
    "block_mlp_init_scale",
    "block_out_init_scale",
    "block_use_xavier_init",
    "conv_use_xavier_init",
)
# Field to its other names, and what counts where it is absent.
OTHER_NAMES: Mapping[str, tuple[tuple[str, ...], float | None]] = {
    "hidden_size": (("block_dim", "conv_dim", "conv_dim_out"), None),
    "num_attention_heads": (("num_heads",), None),
    "norm_eps": (("block_norm_eps",), NORM_EPS),
    "rope_theta": (("theta",), ABSENT_THETA),
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate an lfm2 config."""
    indices = config.array("full_attn_idxs", None)
    count = config.layer_count()
    absent = [FULL if indices is None or index in indices else CONV for index in range(count)]
    mlp = MlpConfig(_intermediate_size(config), "silu")
    config.expect("block_use_swiglu", (True,), True)
    return lfm2_decoder(config, "lfm2", layer_kinds(config, absent, CONV), [mlp] * count)


def lfm2_decoder(
    config: HfConfig, model_type: str, kinds: list[str], feed_forward: Sequence[MlpConfig | MoeConfig]
) -> DecoderConfig:
    """The decoder with layers of these ``kinds``, each before one of ``feed_forward``."""
    _check_other_names(config)
    mixers = {
        FULL: BlockConfig("operator_norm", "self_attn", _attention(config), names=ATTENTION_NAMES),
        CONV: BlockConfig("operator_norm", "conv", _convolution(config), names=CONV_NAMES),
    }
    layers = [
        LayerConfig((mixers[kind], BlockConfig("ffn_norm", "feed_forward", body, names=MLP_NAMES)))
        for kind, body in zip(kinds, feed_forward, strict=True)
    ]
    decoder = decoder_of(
        config,
        model_type,
        layers,
        norm_eps=NORM_EPS,
        norm_eps_field="norm_eps",
        absent_padding=0,
        absent_tied=True,
        final_norm_source="embedding_norm",
    )
    # It counts more than tie_word_embeddings.
    return replace(decoder, tie_word_embeddings=config.flag("tie_embedding", default=decoder.tie_word_embeddings))


def _attention(config: HfConfig) -> AttentionConfig:
    heads, kv_heads = head_counts(config, ABSENT_KV_HEADS)
    head_dim = head_dim_of(config)
    rope = rope_from_config(config, head_dim, absent_theta=ABSENT_THETA)
    config.expect("use_pos_enc", (True,), True)
    return AttentionConfig(heads, kv_heads, head_dim, scale=head_dim**-0.5, qk_norm=True, rope=rope)


def _convolution(config: HfConfig) -> ShortConvConfig:
    kernel = config.positive("conv_L_cache", default=3)
    return ShortConvConfig(config.positive("hidden_size"), kernel, config.flag("conv_bias", default=False))


def _intermediate_size(config: HfConfig) -> int:
    """The width of the MLP: ``block_ff_dim``, of which two thirds are taken and rounded up where the config says so."""
    name = "block_ff_dim" if "block_ff_dim" in config else "intermediate_size"
    config.ignore("intermediate_size")
    size: int = config.positive(name, default=ABSENT_INTERMEDIATE_SIZE)
    factor = config.scalar("block_ffn_dim_multiplier", default=1.0, positive=True)
    multiple = config.positive("block_multiple_of", default=256)
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return size
    size = int(factor * int(2 * size / 3))
    if size < 1:
        raise config.fail(name, "a size of which something is left after block_auto_adjust_ff_dim")
    return -(-size // multiple) * multiple


def _check_other_names(config: HfConfig) -> None:
    config.ignore(*TRAINING_FIELDS)
    for source, (names, absent) in OTHER_NAMES.items():
        config.same(config.raw(source, absent), source, *names)
