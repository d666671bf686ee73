"""Jamba: Mamba1 with norms of dt, B and C, or attention without positions; then a gated MLP or experts."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.common_fields import CONV_ACTIVATIONS, decoder_of, head_counts
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mamba import IMPLEMENTATIONS, MIXER_NAMES
from hybridge.exporter.families.mamba1_config import INNER_NORMS
from hybridge.exporter.families.mamba_fields import mamba1_of
from hybridge.exporter.families.mlp_config import MlpConfig, MoeConfig
from hybridge.exporter.families.moe_fields import ROUTER_TRAINING_FIELDS, top_k_of

NORM_NAMES = tuple((name, name.replace("_norm", "_layernorm")) for name in INNER_NORMS)
# Fields without effect on inference.
UNUSED_FIELDS = ("use_mamba_kernels", "num_logits_to_keep")


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a jamba config."""
    config.ignore(*UNUSED_FIELDS, *IMPLEMENTATIONS, *ROUTER_TRAINING_FIELDS)
    # One activation for convolutions, MLPs and experts.
    config.expect("hidden_act", CONV_ACTIVATIONS, "silu")
    config.expect("sliding_window", (None,), None)
    eps = config.scalar("rms_norm_eps", default=1e-6, positive=True)
    count = config.layer_count()
    attends = _periodic(config, "attn_layer", 8, 4, count)
    has_experts = _periodic(config, "expert_layer", 2, 1, count)
    mixer = replace(mamba1_of(config), inner_norms="weighted", norm_eps=eps)
    mixers = {
        True: BlockConfig("input_layernorm", "self_attn", _attention(config)),
        False: BlockConfig("input_layernorm", "mamba", mixer, names=(*MIXER_NAMES, *NORM_NAMES)),
    }
    parts = {
        False: BlockConfig("pre_ff_layernorm", "feed_forward", MlpConfig(config.positive("intermediate_size"), "silu")),
        True: BlockConfig("pre_ff_layernorm", "feed_forward", _feed_forward(config)),
    }
    layers = [LayerConfig((mixers[a], parts[e])) for a, e in zip(attends, has_experts, strict=True)]
    return decoder_of(config, "jamba", layers, absent_padding=0, final_norm_source="final_layernorm")


def _periodic(config: HfConfig, name: str, period: int, offset: int, count: int) -> list[bool]:
    """Layers ``offset``, ``offset`` + ``period`` and so on."""
    period = config.positive(f"{name}_period", default=period)
    offset = config.integer(f"{name}_offset", offset, minimum=0)
    if offset >= period:
        raise config.fail(f"{name}_offset", f"less than {name}_period {period}")
    return [index % period == offset for index in range(count)]


def _attention(config: HfConfig) -> AttentionConfig:
    heads, kv_heads = head_counts(config, absent_kv_heads=8)
    hidden_size = config.positive("hidden_size")
    if "head_dim" not in config and hidden_size % heads:
        raise config.fail("hidden_size", f"a multiple of num_attention_heads {heads}")
    head_dim = config.positive("head_dim", default=hidden_size // heads)
    return AttentionConfig(heads, kv_heads, head_dim, scale=head_dim**-0.5)


def _feed_forward(config: HfConfig) -> MlpConfig | MoeConfig:
    """Experts, or an MLP where there is one expert."""
    size, experts = (
        config.positive("intermediate_size"),
        config.positive("num_experts", "num_local_experts", default=16),
    )
    top_k = (
        top_k_of(config, experts, 2, "num_experts")
        if experts > 1
        else config.positive("num_experts_per_tok", default=2)
    )
    if experts == 1:
        return MlpConfig(size, "silu")
    return MoeConfig(experts, top_k, size, "silu", layout="jamba", router="softmax", normalized=False)
