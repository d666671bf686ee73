"""Random configurations of families: odd counts, one layer, no attention at all, tied embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tests.support.random_dense import DENSE, random_dense
from tests.support.random_hybrid import HYBRID, STATE_SIZES, random_hybrid
from tests.support.tiny_configs.near_llama import FILLED
from tests.support.tiny_models import EXPERTS

FAMILIES = (
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "olmo_hybrid",
    "granitemoehybrid",
    "nemotron_h",
    "kimi_linear",
    "bailing_hybrid",
    "mamba",
    "falcon_mamba",
    "jamba",
    "minimax",
    "recurrent_gemma",
    "zamba",
    "zamba2",
    "zaya",
    *HYBRID,
)


@dataclass(frozen=True)
class RandomModel:
    """``overrides`` of the family's tiny config, and the type that the checkpoint is stored in."""

    family: str
    overrides: dict[str, Any]
    stored: str


def random_model(family: str, seed: int) -> RandomModel:
    """The model of ``family`` with number ``seed``; the same for the same arguments."""
    random = Random(f"{family} {seed}")
    kv_heads = random.choice((1, 2, 3))
    common = {
        "vocab_size": random.choice((31, 97, 130)),
        "hidden_size": random.choice((24, 40, 56, 72)),
        "num_attention_heads": kv_heads * random.choice((1, 2, 5)),
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": random.random() < 0.5,
    }
    if family in ("mamba", "mamba2", "falcon_mamba"):  # without attention
        common = {name: value for name, value in common.items() if not name.startswith("num_")}
    own = (random_dense if family in DENSE else _OWN_FIELDS.get(family, _delta))(random, family)
    if family == "granitemoehybrid":  # its heads divide the hidden size
        common["hidden_size"] = common["num_attention_heads"] * random.choice((8, 16))
        own |= _granite_mixer(random, common["hidden_size"])
    if family == "phi3":  # its head size is not its own
        common["hidden_size"] = common["num_attention_heads"] * own.pop("head_dim")
    if family in DENSE and family not in ("lfm3", "phi3"):  # the heads of some divide the hidden size
        common["hidden_size"] = common["num_attention_heads"] * random.choice((8, 14))
    if family in FILLED:
        own["head_dim"] = common["hidden_size"] // common["num_attention_heads"]
    return RandomModel(family, {**common, **own}, random.choice(("float32", "bfloat16", "float16")))


def _delta(random: Random, family: str) -> dict[str, Any]:
    layers, key_heads = random.randint(1, 4), random.choice((1, 2, 3, 5))
    fields: dict[str, Any] = {
        "num_hidden_layers": layers,
        "layer_types": _layer_types(random, layers, "linear_attention", "full_attention"),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * random.choice((1, 2, 3)),
        "linear_key_head_dim": random.choice(STATE_SIZES),
        "linear_value_head_dim": random.choice(STATE_SIZES),
        "linear_conv_kernel_dim": random.randint(2, 8),
        "head_dim": random.choice((8, 16, 24, 40)),
        "intermediate_size": random.choice((20, 52)),
    }
    if family == "olmo_hybrid":  # transformers asks for a layer of each kind
        kinds = [*fields["layer_types"], "linear_attention", "full_attention"]
        own = {"layer_types": kinds, "num_hidden_layers": len(kinds)}
        return fields | own | {"linear_allow_neg_eigval": random.random() < 0.5}
    if family == "qwen3_5_text" or (family == "qwen3_next" and random.random() < 0.3):
        return fields
    experts = random.randint(2, 9)
    return fields | {
        **EXPERTS["qwen3_next"],
        "num_experts": experts,
        "num_experts_per_tok": random.randint(1, experts),
        "moe_intermediate_size": random.choice((12, 28)),
    }


def _granite(random: Random, _family: str) -> dict[str, Any]:
    layers, experts = random.randint(1, 4), random.choice((0, 2, 5, 9))
    return {
        "num_hidden_layers": layers,
        "layer_types": _layer_types(random, layers, "mamba", "attention"),
        "position_embedding_type": random.choice(("rope", "nope")),
        "num_local_experts": experts,
        "num_experts_per_tok": random.randint(1, experts or 2),
        "intermediate_size": random.choice((12, 28)),
        "attention_bias": random.random() < 0.5,
        "mamba_proj_bias": random.random() < 0.5,
    }


def _granite_mixer(random: Random, hidden_size: int) -> dict[str, Any]:
    head_dim = 8
    heads = 2 * hidden_size // head_dim
    return {
        "mamba_expand": 2,
        "mamba_d_head": head_dim,
        "mamba_n_heads": heads,
        "mamba_n_groups": random.choice([groups for groups in range(1, heads + 1) if heads % groups == 0]),
        "mamba_d_state": random.choice(STATE_SIZES),
        "mamba_d_conv": random.randint(2, 4),
    }


def _nemotron(random: Random, _family: str) -> dict[str, Any]:
    groups, experts = random.choice((1, 2, 3, 5)), random.choice((4, 6, 8))
    kept = random.choice((1, 2))
    return {
        **EXPERTS["nemotron_h"],
        "hybrid_override_pattern": "".join(random.choices("ME*-", (3, 2, 1, 1), k=random.randint(1, 5))),
        "head_dim": random.choice((8, 16, 24)),
        "mamba_num_heads": groups * random.choice((1, 2, 3)),
        "mamba_head_dim": random.choice(STATE_SIZES),
        "n_groups": groups,
        "ssm_state_size": random.choice(STATE_SIZES),
        "conv_kernel": random.randint(2, 4),
        "n_routed_experts": experts,
        "n_group": kept,
        "topk_group": random.randint(1, kept),
        "num_experts_per_tok": random.randint(1, experts // 2),
        "norm_topk_prob": random.random() < 0.5,
        "routed_scaling_factor": random.choice((1.0, 2.5)),
    }


def _kimi(random: Random, _family: str) -> dict[str, Any]:
    return {
        **_latent(random),
        "q_lora_rank": random.choice((None, 5, 24)),
        "linear_num_heads": random.choice((1, 2, 3, 5)),
        "linear_head_dim": random.choice(STATE_SIZES),
        "linear_conv_kernel_dim": random.randint(2, 8),
    }


def _ling(random: Random, _family: str) -> dict[str, Any]:
    return {
        **_latent(random),
        "head_dim": random.choice(STATE_SIZES),
        "short_conv_kernel_size": random.randint(2, 8),
        "kda_safe_gate": random.random() < 0.5,
        "kda_lower_bound": random.choice((-5.0, -0.3)),
        "rope_theta": random.choice((1e4, 6e6)),
    }


def _latent(random: Random) -> dict[str, Any]:
    layers, heads, groups = random.randint(1, 4), random.choice((1, 2, 3, 5)), random.choice((1, 2))
    experts, top_groups = groups * random.choice((2, 3, 5)), random.randint(1, groups)
    return {
        "num_hidden_layers": layers,
        "layer_types": _layer_types(random, layers, "linear_attention", "full_attention"),
        "mlp_layer_types": random.choices(("dense", "sparse"), k=layers),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "kv_lora_rank": random.choice((7, 16, 40)),
        "qk_nope_head_dim": random.choice((3, 8, 24)),
        "qk_rope_head_dim": random.choice((4, 8, 16)),
        "v_head_dim": random.choice((3, 8, 40)),
        "attention_bias": random.random() < 0.5,
        "intermediate_size": random.choice((20, 52)),
        "num_experts": experts,
        "num_expert_group": groups,
        "topk_group": top_groups,
        "num_experts_per_token": random.randint(1, top_groups * experts // groups),
        "num_shared_experts": random.randint(1, 2),
        "moe_intermediate_size": random.choice((12, 28)),
        "moe_renormalize": random.random() < 0.5,
        "routed_scaling_factor": random.choice((1.0, 2.446)),
    }


def _mamba(random: Random, _family: str) -> dict[str, Any]:
    return {
        "num_hidden_layers": random.randint(1, 4),
        "state_size": random.choice(STATE_SIZES),
        "expand": random.choice((1, 2, 3)),
        "conv_kernel": random.randint(2, 8),
        "time_step_rank": random.choice(("auto", 1, 3, 24)),
        "use_bias": random.random() < 0.5,
        "use_conv_bias": random.random() < 0.5,
        "residual_in_fp32": random.random() < 0.5,
    }


def _mamba1(random: Random) -> dict[str, Any]:
    """Of jamba and zamba."""
    return {
        "mamba_d_state": random.choice(STATE_SIZES),
        "mamba_d_conv": random.randint(2, 8),
        "mamba_expand": random.choice((1, 2, 3)),
        "mamba_dt_rank": random.choice(("auto", 1, 3, 24)),
        "mamba_conv_bias": random.random() < 0.5,
        "mamba_proj_bias": random.random() < 0.5,
    }


def _jamba(random: Random, _family: str) -> dict[str, Any]:
    attention, experts, count = random.randint(1, 4), random.randint(1, 3), random.choice((1, 2, 3, 5))
    return {
        "num_hidden_layers": random.randint(1, 4),
        "attn_layer_period": attention,
        "attn_layer_offset": random.randrange(attention),
        "expert_layer_period": experts,
        "expert_layer_offset": random.randrange(experts),
        "head_dim": random.choice((6, 8, 24)),
        "intermediate_size": random.choice((20, 52)),
        "num_experts": count,
        "num_experts_per_tok": random.randint(1, count),
        **_mamba1(random),
    }


def _minimax(random: Random, _family: str) -> dict[str, Any]:
    layers, experts = random.randint(1, 4), random.randint(2, 9)
    return {
        "num_hidden_layers": layers,
        "layer_types": _layer_types(random, layers, "linear_attention", "full_attention"),
        "head_dim": random.choice(STATE_SIZES),
        "block_size": random.choice((4, 32, 256)),
        "num_local_experts": experts,
        "num_experts_per_tok": random.randint(1, experts),
        "intermediate_size": random.choice((12, 28)),
        **{
            f"{part}_{factor}_factor": random.choice((1, 0.6, 1.7))
            for part in ("full_attn", "linear_attn", "mlp")
            for factor in ("alpha", "beta")
        },
    }


def _recurrent_gemma(random: Random, _family: str) -> dict[str, Any]:
    kv_heads = random.choice((1, 2, 3))
    heads = kv_heads * random.choice((1, 2))
    return {
        "hidden_size": heads * random.choice((8, 16)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": random.randint(1, 4),
        "block_types": random.choices(("recurrent", "attention"), k=random.randint(1, 4)),
        "conv1d_width": random.randint(2, 8),
        "attention_window_size": random.choice((3, 20, 2048)),
        "attention_bias": random.random() < 0.5,
        "intermediate_size": random.choice((20, 52)),
        "logits_soft_cap": random.choice((2.0, 30.0)),
    }


def _zamba(random: Random, _family: str) -> dict[str, Any]:
    kinds = [*random.choices(("linear_attention", "hybrid"), k=random.randint(0, 3)), "hybrid", "hybrid"]
    random.shuffle(kinds)
    return {
        "hidden_size": random.choice((30, 48, 66)),
        "num_hidden_layers": len(kinds),
        "layers_block_type": kinds,
        "attention_head_dim": random.choice((None, 6, 8, 24)),
        "intermediate_size": random.choice((20, 52)),
        "hidden_act": random.choice(("gelu", "silu")),
        "n_mamba_heads": random.choice((1, 2, 3, 6)),
        **_mamba1(random),
    }


def _zamba2(random: Random, _family: str) -> dict[str, Any]:
    kinds = [*random.choices(("linear_attention", "hybrid"), k=random.randint(0, 4)), "hybrid"]
    random.shuffle(kinds)
    groups, heads, adapted = random.choice((1, 2, 3)), random.choice((1, 2, 3, 6)), random.random() < 0.5
    # Heads of attention and of Mamba2 divide it.
    size = 6 * random.choice((8, 16))
    return {
        "hidden_size": size,
        "num_hidden_layers": len(kinds),
        "layers_block_type": kinds,
        "num_mem_blocks": random.randint(1, 3),
        "num_attention_heads": heads,
        "num_key_value_heads": None if adapted else random.choice([n for n in (1, 2, 3, 6) if heads % n == 0]),
        "use_shared_attention_adapter": adapted,
        "adapter_rank": random.choice((1, 3, 24)),
        "use_mem_rope": random.random() < 0.5,
        "add_bias_linear": random.random() < 0.5,
        "intermediate_size": random.choice((None, 20, 52)),
        "hidden_act": random.choice(("gelu", "silu")),
        "mamba_ngroups": groups,
        "n_mamba_heads": groups * size // 24,
        "mamba_expand": groups,
        "mamba_d_state": random.choice(STATE_SIZES),
        "mamba_d_conv": random.randint(2, 4),
        "chunk_size": random.choice((8, 256)),
    }


def _zaya(random: Random, _family: str) -> dict[str, Any]:
    layers = random.randint(1, 5)
    ropes = {
        kind: {
            "rope_type": "default",
            "rope_theta": random.choice((1e3, 5e6)),
            "partial_rotary_factor": random.choice((0.25, 0.5, 1.0)),
        }
        for kind in ("hybrid", "hybrid_sliding")
    }
    return {
        "num_hidden_layers": layers,
        "layer_types": random.choice((None, _layer_types(random, layers, "hybrid", "hybrid_sliding"))),
        "rope_parameters": random.choice((None, ropes)),
        "sliding_window": random.choice((1, 3, 20)),
        "head_dim": random.choice((8, 24, 40)),
        "cca_time0": random.choice((1, 2, 2, 3, 4)),
        "cca_time1": random.choice((1, 2, 2, 3, 4)),
        "attention_bias": random.random() < 0.5,
        "num_experts": random.choice((1, 2, 5, 8)),
        "moe_intermediate_size": random.choice((12, 28)),
        "router_hidden_size": random.choice((4, 14, 33)),
        "hidden_act": random.choice(("silu", "gelu", "relu2")),
        "rms_norm_eps": random.choice((1e-6, 1e-5, 1e-2)),
    }


_OWN_FIELDS = {
    "recurrent_gemma": _recurrent_gemma,
    "zamba": _zamba,
    "zamba2": _zamba2,
    "zaya": _zaya,
    "granitemoehybrid": _granite,
    "nemotron_h": _nemotron,
    "kimi_linear": _kimi,
    "bailing_hybrid": _ling,
    "minimax": _minimax,
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    **dict.fromkeys(HYBRID, random_hybrid),
    "jamba": _jamba,
}


def _layer_types(random: Random, count: int, recurrent: str, attention: str) -> list[str]:
    return random.choices((recurrent, attention), (2, 1), k=count)
