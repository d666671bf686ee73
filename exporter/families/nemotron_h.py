"""Nemotron-H: one mixer a layer, Mamba2 (M), attention (*), MLP (-), experts (E); no position embedding."""

from __future__ import annotations

from hybridge.artifact.errors import UnsupportedError
from hybridge.artifact.limits import LAYERS
from hybridge.exporter.families.activation_names import activation_of, expert_activation_of
from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.common_fields import CONV_ACTIVATIONS, UNBOUNDED, head_counts
from hybridge.exporter.families.decoder_config import BlockConfig, BodyConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig, MoeConfig
from hybridge.exporter.families.moe_fields import ROUTER_TRAINING_FIELDS, expert_groups, top_k_of
from hybridge.exporter.families.recurrent_config import MambaConfig
from hybridge.exporter.families.rope import ROPE_FIELDS

PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
BLOCK_TYPES = {"linear_attention": "mamba", "full_attention": "attention", **{k: k for k in PATTERN.values()}}
# What transformers builds where the config does not say.
ABSENT_KV_HEADS, ABSENT_HEAD_DIM = 8, 128
ABSENT_MAMBA_HEADS, ABSENT_MAMBA_HEAD_DIM, ABSENT_STATE_SIZE = 128, 64, 128
ABSENT_EXPERTS, ABSENT_TOP_K, ABSENT_EXPERT_SIZE = 8, 2, 7688
EXPERT_FIELDS = (
    "moe_intermediate_size",
    "moe_latent_size",
    "moe_shared_expert_intermediate_size",
    "n_group",
    "n_routed_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "num_local_experts",
    "routed_scaling_factor",
    "topk_group",
)
# Fields of experts in a config without any, of the multi-token-prediction part, of training, of caches, and of a rotary
# embedding that the family does not have. The sizes of the shared experts say all that n_shared_experts could.
UNUSED_FIELDS = (
    *ROPE_FIELDS,
    *EXPERT_FIELDS,
    *ROUTER_TRAINING_FIELDS,
    "expand",
    "mamba_expand",
    "mamba_ssm_cache_dtype",
    "moe_shared_expert_overlap",
    "mtp_layers_block_type",
    "n_shared_experts",
    "num_hidden_layers",
    "num_logits_to_keep",
    "time_step_floor",
    "time_step_max",
    "time_step_min",
    "time_step_rank",
    "use_mamba_kernels",
    "mamba_dt_min",
    "mamba_dt_max",
    "mamba_dt_init_floor",
    "num_nextn_predict_layers",
)

TYPE_FIELDS = ("layers_block_type", "layer_types", "hybrid_override_pattern")


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a nemotron_h config."""
    hidden_size = config.positive("hidden_size")
    types = _block_types(config)
    bodies: dict[str, BodyConfig] = {"mamba": _mamba(config), "attention": _attention(config)}
    bodies["mlp"] = MlpConfig(
        config.positive("intermediate_size"),
        activation_of(config, "mlp_hidden_act", "relu2"),
        "plain",
        config.flag("mlp_bias", default=False),
    )
    if "moe" in types:
        bodies["moe"] = _moe(config)
    _check_mtp_pattern(config)
    config.ignore(*UNUSED_FIELDS)
    layers = tuple(LayerConfig((BlockConfig("norm", "mixer", bodies[kind]),)) for kind in types)
    return DecoderConfig(
        model_type="nemotron_h",
        vocab_size=config.positive("vocab_size"),
        hidden_size=hidden_size,
        layers=layers,
        norm_eps=_norm_eps(config),
        embedding_sources=("embeddings.weight", "embedding.weight"),
        final_norm_source="norm_f",
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        max_position_embeddings=config.positive("max_position_embeddings", default=None),
        residual_in_fp32=config.flag("residual_in_fp32", default=False),
        ignored_sources=("mtp.",),
        own_head_wins=True,
    )


def _block_types(config: HfConfig) -> list[str]:
    """One of mamba, attention, mlp, moe per layer, from ``layers_block_type`` or ``hybrid_override_pattern``."""
    given = [name for name in TYPE_FIELDS if config.raw(name, None) is not None]
    if not given:
        raise config.fail(TYPE_FIELDS[0], "a list of layer types, or a hybrid_override_pattern")
    types = _types_of(config, given[0])
    for name in given[1:]:
        if _types_of(config, name) != types:
            raise config.fail(name, f"the same layers as {given[0]}")
    return types


def _check_mtp_pattern(config: HfConfig) -> None:
    """The layers of the multi-token prediction head follow from its tensors; the field must only be 1."""
    if set(config.string("mtp_hybrid_override_pattern", "")) - set(PATTERN):
        raise config.fail("mtp_hybrid_override_pattern", f"letters of {''.join(PATTERN)}")


def _types_of(config: HfConfig, name: str) -> list[str]:
    value = config.raw(name)
    table = PATTERN if name == "hybrid_override_pattern" else BLOCK_TYPES
    if not isinstance(value, (list, str)) or not value or not all(isinstance(v, str) for v in value):
        raise config.fail(name, "a non-empty pattern or list of layer types")
    if len(value) > LAYERS:
        raise config.fail(name, f"at most {LAYERS} layers")
    types = []
    for index, key in enumerate(value):
        kind = table.get(key)
        if kind is None:
            raise UnsupportedError(
                f"config.json: {name}: layer {index}: expected one of {', '.join(table)}, found {key!r}"
            )
        types.append(kind)
    return types


def _moe(config: HfConfig) -> MoeConfig:
    experts = config.positive("n_routed_experts", "num_local_experts", default=ABSENT_EXPERTS)
    groups, top_groups = expert_groups(config, experts, "n_routed_experts", ("n_group",))
    activation, bias = activation_of(config, "mlp_hidden_act", "relu2"), config.flag("mlp_bias", default=False)
    shared_size = config.positive("moe_shared_expert_intermediate_size", default=ABSENT_EXPERT_SIZE)
    return MoeConfig(
        num_experts=experts,
        top_k=top_k_of(config, top_groups * experts // groups, ABSENT_TOP_K, "n_routed_experts / n_group x topk_group"),
        intermediate_size=config.positive("moe_intermediate_size", default=ABSENT_EXPERT_SIZE),
        **expert_activation_of(config, "mlp_hidden_act", "relu2"),
        layout="nemotron_h",
        router="sigmoid",
        gated=False,
        normalized=config.flag("norm_topk_prob", default=True),
        scaling=config.scalar("routed_scaling_factor", default=1.0),
        groups=groups,
        top_groups=top_groups,
        shared=MlpConfig(shared_size, activation, "plain", bias),
        latent_size=config.positive("moe_latent_size", default=None, null=None),
        latent_bias=bias,
    )


def _attention(config: HfConfig) -> AttentionConfig:
    heads, kv_heads = head_counts(config, ABSENT_KV_HEADS)
    head_dim = config.positive("head_dim", default=ABSENT_HEAD_DIM)
    # The original name, which transformers does not read.
    config.same(head_dim, "head_dim", "attention_head_dim")
    config.expect("sliding_window", (None,), None)
    # transformers builds these projections without a bias whatever the config says.
    config.expect("attention_bias", (None, False), False)
    return AttentionConfig(heads, kv_heads, head_dim, scale=head_dim**-0.5)


def _norm_eps(config: HfConfig) -> float:
    """The one field that the family reads; other names for it may not contradict it."""
    eps = config.scalar("layer_norm_epsilon", default=1e-5, positive=True)
    config.same(eps, "layer_norm_epsilon", "rms_norm_eps", "norm_eps")
    return eps


def _mamba(config: HfConfig) -> MambaConfig:
    heads = config.positive("mamba_num_heads", default=ABSENT_MAMBA_HEADS)
    groups = config.positive("n_groups", "mamba_n_groups", default=8)
    if heads % groups:
        raise config.fail("n_groups", f"a divisor of mamba_num_heads {heads}")
    config.expect("mamba_hidden_act", CONV_ACTIVATIONS, "silu")
    # transformers builds the projections from use_bias and ignores mamba_proj_bias; checkpoints agree on both.
    config.ignore("mamba_proj_bias")
    return MambaConfig(
        num_heads=heads,
        head_dim=config.positive("mamba_head_dim", default=ABSENT_MAMBA_HEAD_DIM),
        state_size=config.positive("ssm_state_size", default=ABSENT_STATE_SIZE),
        num_groups=groups,
        conv_kernel=config.positive("conv_kernel", "mamba_d_conv", default=4),
        chunk_size=config.positive("chunk_size", "mamba_chunk_size", default=128),
        norm_groups=groups,
        proj_bias=config.flag("use_bias", default=False),
        conv_bias=config.flag("use_conv_bias", "mamba_conv_bias", default=True),
        time_step_limit=config.interval("time_step_limit", "mamba_dt_limit", default=UNBOUNDED),
    )
