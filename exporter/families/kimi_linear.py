"""Kimi Linear: Kimi Delta Attention, latent attention without positions; a gated MLP in the first layers, then experts.

Both config styles: that of the published checkpoints, with an object ``linear_attn_config``, and transformers' own.
"""

from __future__ import annotations

from hybridge.artifact.json_fields import Fields
from hybridge.exporter.families.attention_config import LatentAttentionConfig
from hybridge.exporter.families.common_fields import FULL, LINEAR, decoder_of, layer_kinds
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.latent_fields import (
    LENGTH_FIELDS,
    ExpertDefaults,
    feed_forward_of,
    latent_attention_of,
)
from hybridge.exporter.families.mlp_config import MlpConfig, MoeConfig
from hybridge.exporter.families.recurrent_config import GatedDeltaConfig
from hybridge.exporter.families.rope import ROPE_FIELDS

ABSENT_PADDING = 163839
EXPERTS = ExpertDefaults(count=256, size=1024, scaling=2.446)
NESTED = "linear_attn_config"
MIXER_NAMES = (("norm", "o_norm"), ("out_proj", "o_proj"))
# Names that follow from others, and fields of a rotary embedding that the family does not have.
UNUSED_FIELDS = (*ROPE_FIELDS, "head_dim", "qk_head_dim", "pretraining_tp")
# Fields of the original code with one meaning here: published value, and the only one that transformers computes.
ORIGINAL_FIELDS = {
    "mla_use_nope": True,
    "moe_layer_freq": 1,
    "moe_router_activation_func": "sigmoid",
    "num_nextn_predict_layers": 0,
    "use_grouped_topk": True,
}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a kimi_linear config."""
    config.ignore(*UNUSED_FIELDS)
    for name, value in ORIGINAL_FIELDS.items():
        config.expect(name, (value,), value)
    nested = _nested(config)
    mixers: dict[str, LatentAttentionConfig | GatedDeltaConfig] = {
        FULL: latent_attention_of(config, query_rank=config.positive("q_lora_rank", default=None, null=None)),
        LINEAR: _mixer(config, nested),
    }
    kinds = _layer_kinds(config, nested)
    if nested is not None and (unread := nested.unread()):
        raise nested.fail(unread[0], "no such field, because it may change the layers")
    parts = feed_forward_of(config, "kimi", EXPERTS, absent_dense=1)
    layers = [_layer(mixers[kind], part) for kind, part in zip(kinds, parts, strict=True)]
    return decoder_of(
        config,
        "kimi_linear",
        layers,
        norm_eps=1e-5,
        absent_padding=ABSENT_PADDING,
        length_fields=LENGTH_FIELDS,
        own_head_wins=True,
    )


def _layer(mixer: LatentAttentionConfig | GatedDeltaConfig, part: MlpConfig | MoeConfig) -> LayerConfig:
    """transformers saves the MLP of the first layers under the name of the experts."""
    names = MIXER_NAMES if isinstance(mixer, GatedDeltaConfig) else ()
    source, alias = ("block_sparse_moe", "mlp") if isinstance(part, MoeConfig) else ("mlp", "block_sparse_moe")
    return LayerConfig(
        (
            BlockConfig("input_layernorm", "self_attn", mixer, names=names),
            BlockConfig("post_attention_layernorm", source, part, source_alias=alias),
        )
    )


def _nested(config: HfConfig) -> Fields | None:
    """The object of the published style, which takes precedence over top-level fields."""
    if NESTED not in config:
        return None
    value = config.raw(NESTED)
    if not isinstance(value, dict):
        raise config.fail(NESTED, "an object")
    return HfConfig(value, where=f"config.json: {NESTED}")


def _mixer(config: HfConfig, nested: Fields | None) -> GatedDeltaConfig:
    def size(name: str, inside: str, absent: int) -> int:
        found: int = config.positive(name, default=absent)
        return found if nested is None or inside not in nested else nested.integer(inside, minimum=1)

    heads, head_dim = size("linear_num_heads", "num_heads", 32), size("linear_head_dim", "head_dim", 128)
    return GatedDeltaConfig(
        num_key_heads=heads,
        num_value_heads=heads,
        key_size=head_dim,
        value_size=head_dim,
        conv_kernel=size("linear_conv_kernel_dim", "short_conv_kernel_size", 4),
        projections="low_rank",
        decay_shape=(1, 1, heads, 1),
        gate_activation="sigmoid",
    )


def _layer_kinds(config: HfConfig, nested: Fields | None) -> list[str]:
    """``layer_types``, else the two lists of layers, which count from 1, else every fourth layer but the first."""
    count = config.layer_count()
    absent = [FULL if index and index % 4 == 0 else LINEAR for index in range(count)]
    lists = {LINEAR: "kda_layers", FULL: "full_attn_layers"}
    if nested is None or not all(name in nested for name in lists.values()):
        return layer_kinds(config, absent)
    found = {kind: nested.array(name) for kind, name in lists.items()}
    if config.raw("layer_types", None) is not None:
        return layer_kinds(config, absent)
    numbers = [number for group in found.values() for number in group]
    if any(type(number) is not int for number in numbers) or sorted(numbers) != list(range(1, count + 1)):
        raise nested.fail("kda_layers", f"with full_attn_layers, each of the {count} layers once, counted from 1")
    kind_of = {number: kind for kind, group in found.items() for number in group}
    return [kind_of[number] for number in range(1, count + 1)]
