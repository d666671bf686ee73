"""Zamba2: Mamba2, and in some layers before it one of a few attention blocks that layers share (arXiv 2411.15242)."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.common_fields import UNBOUNDED, decoder_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.recurrent_config import MambaConfig
from hybridge.exporter.families.rope import ROPE_FIELDS, rope_from_config
from hybridge.exporter.families.shared_block import SharedBlockConfig
from hybridge.exporter.families.zamba_fields import HYBRID, MAMBA, layer_kinds, layers_with, same_as

# The kinds of fields that transformers declares, and its defaults.
KINDS = {
    "int": "max_position_embeddings num_hidden_layers mamba_d_state mamba_d_conv mamba_expand mamba_ngroups "
    "n_mamba_heads chunk_size num_attention_heads num_mem_blocks adapter_rank num_logits_to_keep",
    "int?": "intermediate_size num_key_value_heads",
    "float": "time_step_min time_step_max time_step_floor rms_norm_eps",
    "bool": "use_mamba_kernels use_conv_bias use_mem_eff_path add_bias_linear use_shared_attention_adapter "
    "use_mem_rope use_long_context",
    "str": "hidden_act",
    "[str]?": "layers_block_type",
    "number": "attention_dropout",
    "object?": "rope_parameters",
}
ABSENT = {
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "hidden_size": 2560,
    "num_hidden_layers": 54,
    "n_mamba_heads": 8,
    "mamba_d_state": 64,
    "hidden_act": "gelu",
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
# Of training, and of one implementation.
UNUSED_FIELDS = (
    "time_step_max",
    "time_step_floor",
    "use_mamba_kernels",
    "use_mem_eff_path",
    "num_logits_to_keep",
    "ft_lora",
)
SHARED = "shared_transformer"
ADAPTERS = ("feed_forward.gate_up_proj_adapter_list", *(f"self_attn.linear_{name}_adapter_list" for name in "qkv"))
# Of the gated norm, whatever the config says.
GATED_NORM_EPS = 1e-5


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a zamba2 config."""
    config.fill(ABSENT)
    config.ignore(*UNUSED_FIELDS)
    kinds = layer_kinds(config, _default_kinds())
    mixer, shared = _mixer(config), _shared(config)
    layers = layers_with(shared, mixer, kinds, SHARED, config.positive("num_mem_blocks", default=1))
    return decoder_of(
        config,
        "zamba2",
        layers,
        norm_eps=1e-5,
        absent_padding=0,
        absent_tied=True,
        final_norm_source="final_layernorm",
        # A layer that stores the block for itself has the adapters of the others, too.
        ignored_sources=tuple(
            f"layers.{index}.{SHARED}.{part}" for index, kind in enumerate(kinds) if kind == HYBRID for part in ADAPTERS
        ),
    )


def _default_kinds() -> list[str]:
    period = [MAMBA] * 5 + [HYBRID]
    return [MAMBA, *period * 7, *[MAMBA] * 4, HYBRID, *[MAMBA] * 3, HYBRID, *[MAMBA] * 2]


def _mixer(config: HfConfig) -> MambaConfig:
    heads, expand = config.positive("n_mamba_heads"), config.positive("mamba_expand", default=2)
    size, groups = expand * config.positive("hidden_size"), config.positive("mamba_ngroups", default=1)
    state_size = config.positive("mamba_d_state")
    if size % heads:
        raise config.fail("n_mamba_heads", f"a divisor of mamba_expand x hidden_size {size}")
    if heads % groups:
        raise config.fail("mamba_ngroups", f"a divisor of n_mamba_heads {heads}")
    same_as(config, "mamba_headdim", size // heads, "mamba_expand x hidden_size / n_mamba_heads")
    config.same(state_size, "mamba_d_state", "state_size")
    # transformers always has this bias.
    config.expect("use_conv_bias", (True,), True)
    lowest = config.scalar("time_step_min", default=0.001)
    return MambaConfig(
        num_heads=heads,
        head_dim=size // heads,
        state_size=state_size,
        num_groups=groups,
        conv_kernel=config.positive("mamba_d_conv", default=4),
        chunk_size=config.positive("chunk_size", default=256),
        norm_groups=groups,
        proj_bias=config.flag("add_bias_linear", default=False),
        time_step_limit=(lowest, UNBOUNDED[1])
        if config.raw("time_step_limit", None) is None
        else config.interval("time_step_limit", default=UNBOUNDED),
        norm_eps=GATED_NORM_EPS,
    )


def _shared(config: HfConfig) -> SharedBlockConfig:
    """The shared block, without the place of its weights."""
    hidden_size, heads = config.positive("hidden_size"), config.positive("num_attention_heads")
    if 2 * hidden_size % heads:
        raise config.fail("num_attention_heads", f"a divisor of 2 x hidden_size {2 * hidden_size}")
    head_dim = 2 * hidden_size // heads
    kv_heads = config.positive("num_key_value_heads", default=heads, null=heads)
    if heads % kv_heads:
        raise config.fail("num_key_value_heads", f"a divisor of num_attention_heads {heads}")
    adapted = config.flag("use_shared_attention_adapter", default=False)
    if adapted and kv_heads != heads:
        # The adapters of keys and values have the width of those of queries.
        raise config.fail("num_key_value_heads", f"num_attention_heads {heads} with use_shared_attention_adapter")
    config.expect("use_shared_mlp_adapter", (True, None), None)
    config.expect("use_long_context", (False,), False)
    for name, value in (
        ("attention_head_dim", head_dim),
        ("attention_hidden_size", 2 * hidden_size),
        ("kv_channels", hidden_size // heads),
        ("num_query_groups", heads),
    ):
        same_as(config, name, value, "hidden_size and num_attention_heads")
    rotates = config.flag("use_mem_rope", default=False)
    if rotates and head_dim % 2:
        raise config.fail("hidden_size", f"a multiple of num_attention_heads {heads} with use_mem_rope")
    rope = rope_from_config(config, head_dim) if rotates else None
    config.ignore(*ROPE_FIELDS)
    size = config.positive("intermediate_size", default=4 * hidden_size, null=4 * hidden_size)
    config.same(size, "intermediate_size", "ffn_hidden_size")
    mlp = MlpConfig(size, activation_of(config), "fused", bias=config.flag("add_bias_linear", default=False))
    attention = AttentionConfig(heads, kv_heads, head_dim, scale=(head_dim / 2) ** -0.5, rope=rope)
    return SharedBlockConfig(attention, mlp, config.positive("adapter_rank", default=128), adapted)
