"""Shared by families: config fields under their common names, and the parts built from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hybridge.exporter.families.attention_config import AttentionConfig, RopeConfig
from hybridge.exporter.families.decoder_config import BlockConfig, BodyConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.recurrent_config import MambaConfig

# The convolution op fuses SiLU; "swish" is its other name.
CONV_ACTIVATIONS = ("silu", "swish")
UNBOUNDED = (0.0, float("inf"))
LINEAR, FULL = "linear_attention", "full_attention"


def decoder_of(
    config: HfConfig,
    model_type: str,
    layers: Iterable[LayerConfig],
    *,
    norm_eps: float = 1e-6,
    norm_eps_field: str = "rms_norm_eps",
    absent_padding: int | None = None,
    absent_tied: bool = False,
    final_norm_source: str = "norm",
    embedding_source: str = "embed_tokens.weight",
    length_fields: tuple[str, ...] = ("max_position_embeddings",),
    **rest: Any,
) -> DecoderConfig:
    """A decoder in Llama's layout. ``norm_eps`` and ``absent_*`` count where the config has no such field."""
    return DecoderConfig(
        model_type=model_type,
        vocab_size=config.vocabulary(absent_padding),
        hidden_size=config.positive("hidden_size"),
        layers=tuple(layers),
        norm_eps=config.scalar(norm_eps_field, default=norm_eps, positive=True),
        embedding_sources=(embedding_source,),
        final_norm_source=final_norm_source,
        tie_word_embeddings=config.flag("tie_word_embeddings", default=absent_tied),
        max_position_embeddings=config.positive(*length_fields, default=None),
        **rest,
    )


def layer_of(name: str, mixer: BodyConfig, mlp: BodyConfig) -> LayerConfig:
    """A mixer under its ``name`` in the checkpoint, then a feed-forward part, each after a norm, as in Llama."""
    return LayerConfig(
        (BlockConfig("input_layernorm", name, mixer), BlockConfig("post_attention_layernorm", "mlp", mlp))
    )


def norm_after_layer_of(mixer: BodyConfig, mlp: BodyConfig) -> LayerConfig:
    """A mixer, then a feed-forward part, each with a norm behind it and none in front, as in OLMo 2."""
    return LayerConfig(
        (
            BlockConfig("post_attention_layernorm", "self_attn", mixer, norm_after=True),
            BlockConfig("post_feedforward_layernorm", "mlp", mlp, norm_after=True),
        )
    )


def attention_of(
    config: HfConfig,
    head_dim: int,
    rope: RopeConfig | None,
    absent_kv_heads: int | None = None,
    bias_names: tuple[str, ...] = ("attention_bias",),
    **rest: Any,
) -> AttentionConfig:
    """Attention whose projections have a bias where the field called one of ``bias_names`` says so.

    ``rest``: other fields of AttentionConfig; ``output_bias`` among them is that of the fourth projection alone.
    """
    heads, kv_heads = head_counts(config, absent_kv_heads)
    bias = config.flag(*bias_names, default=False)
    rest = {"scale": head_dim**-0.5, "output_bias": bias, **rest}
    return AttentionConfig(heads, kv_heads, head_dim, bias=bias, rope=rope, **rest)


def layer_kinds(config: HfConfig, absent: Sequence[str], other: str = LINEAR) -> list[str]:
    """``other`` or FULL for each layer: ``layer_types``, or ``absent`` where the config does not have it."""
    kinds = config.array("layer_types", None)
    if kinds is None:
        kinds = absent
    for index, kind in enumerate(kinds):
        if kind not in (other, FULL):
            raise config.fail("layer_types", f"{other} or {FULL} for layer {index} (found {kind!r})")
    if len(kinds) != len(absent):
        raise config.fail("layer_types", f"a list of num_hidden_layers {len(absent)} entries")
    return list(kinds)


def mamba_d_mixer(config: HfConfig, size: int | None = None, size_field: str = "") -> MambaConfig:
    """The mixer of configs that spell their fields ``mamba_d_*`` (bamba, falcon_h1, granitemoehybrid).

    ``size`` is that of all heads, which ``size_field`` gives; by default mamba_expand x hidden_size.
    """
    heads, expand = config.positive("mamba_n_heads"), config.positive("mamba_expand", default=2)
    if size is None:
        size, size_field = expand * config.positive("hidden_size"), "mamba_expand x hidden_size"
    head_dim = size // heads
    if config.raw("mamba_d_head", "auto") != "auto":
        head_dim = config.positive("mamba_d_head")
    if heads * head_dim != size:
        raise config.fail("mamba_n_heads", f"{size} ({size_field}) / mamba_d_head {head_dim}")
    config.expect("hidden_act", CONV_ACTIVATIONS, "silu")
    groups = config.positive("mamba_n_groups", default=1)
    if heads % groups:
        raise config.fail("mamba_n_groups", f"a divisor of mamba_n_heads {heads}")
    return MambaConfig(
        num_heads=heads,
        head_dim=head_dim,
        state_size=config.positive("mamba_d_state", default=256),
        num_groups=groups,
        conv_kernel=config.positive("mamba_d_conv", default=4),
        chunk_size=config.positive("mamba_chunk_size", default=256),
        norm_groups=groups,
        proj_bias=config.flag("mamba_proj_bias", default=False, null=False),
        conv_bias=config.flag("mamba_conv_bias", default=True, null=False),
        time_step_limit=config.interval("time_step_limit", default=UNBOUNDED),
    )


def head_counts(config: HfConfig, absent_kv_heads: int | None = None) -> tuple[int, int]:
    """Query heads and key/value heads; CheckpointError when the second does not divide the first.

    A null num_key_value_heads means as many as query heads; an absent one ``absent_kv_heads``, where that is given.
    """
    heads = config.positive("num_attention_heads")
    kv_heads = config.positive("num_key_value_heads", default=absent_kv_heads or heads, null=heads)
    if heads % kv_heads:
        raise config.fail("num_key_value_heads", f"a divisor of num_attention_heads {heads}")
    return heads, kv_heads


def check_heads(config: HfConfig) -> None:
    """Refuse a hidden size that the heads do not divide, as transformers does for some families."""
    heads = config.positive("num_attention_heads")
    if config.positive("hidden_size") % heads:
        raise config.fail("hidden_size", f"a multiple of num_attention_heads {heads}")


def check_shares(config: HfConfig, *names: str) -> None:
    """Refuse values that are not probabilities, in fields used only in training."""
    for name in names:
        if not 0 <= config.scalar(name, default=0.0) <= 1:
            raise config.fail(name, "a number from 0 to 1")


def head_dim_of(config: HfConfig) -> int:
    """``head_dim``, or hidden_size / num_attention_heads where the config does not give it."""
    hidden_size, heads = config.positive("hidden_size"), config.positive("num_attention_heads")
    if config.raw("head_dim", None) is None and hidden_size % heads:
        raise config.fail("hidden_size", f"a multiple of num_attention_heads {heads}")
    return config.positive("head_dim", default=hidden_size // heads, null=hidden_size // heads)
