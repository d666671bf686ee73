"""Random configurations of families with Mamba2 and few options, and of those with LFM2's short convolutions."""

from __future__ import annotations

from random import Random
from typing import Any

HYBRID = ("bamba", "falcon_h1", "lfm2", "lfm2_moe", "mamba2")
# Sizes that the CUDA kernels run, so that a plain export takes them.
STATE_SIZES = (8, 16, 24, 40, 64)


def random_hybrid(random: Random, family: str) -> dict[str, Any]:
    """Overrides of the family's tiny config, its sizes and counts of heads included."""
    if family == "mamba2":
        return _mamba2(random)
    kv_heads, layers = random.choice((1, 2, 3)), random.randint(1, 4)
    heads = kv_heads * random.choice((1, 2, 5))
    fields = {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * random.choice((8, 16)),  # divided by the heads
        "num_hidden_layers": layers,
        "intermediate_size": random.choice((20, 52)),
        "rope_parameters": {"rope_type": "default", "rope_theta": random.choice((50.0, 1e4))},
    }
    own = {"bamba": _bamba, "falcon_h1": _falcon_h1, "lfm2": _lfm2, "lfm2_moe": _lfm2_moe}[family]
    return fields | own(random, layers, fields["hidden_size"])


def _mamba2(random: Random) -> dict[str, Any]:
    groups, head_dim, expand = random.choice((1, 2, 3)), random.choice((8, 16)), random.choice((1, 2))
    heads = groups * random.choice((2, 4, 6))
    return {
        "hidden_size": heads * head_dim // expand,
        "num_heads": heads,
        "head_dim": head_dim,
        "expand": expand,
        "n_groups": groups,
        "state_size": random.choice(STATE_SIZES),
        "num_hidden_layers": random.randint(1, 4),
        "conv_kernel": random.randint(2, 4),
        "chunk_size": random.choice((8, 256)),
        "time_step_limit": random.choice(([0.0, float("inf")], [0.01, 0.5])),
        "residual_in_fp32": random.random() < 0.5,
        **_flags(random, "use_bias", "use_conv_bias"),
    }


def _bamba(random: Random, layers: int, hidden_size: int) -> dict[str, Any]:
    expand = random.choice((1, 2))
    heads = expand * hidden_size // 8
    return {
        **_mixer(random, heads),
        "mamba_expand": expand,
        "attn_layer_indices": [index for index in range(layers) if random.random() < 0.4],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        **_flags(random, "attention_bias", "mlp_bias"),
    }


def _falcon_h1(random: Random, _layers: int, _hidden_size: int) -> dict[str, Any]:
    heads = random.choice((1, 4, 6))
    factors = ("embedding", "lm_head", "key", "attention_in", "attention_out", "ssm_in", "ssm_out")
    return {
        **_mixer(random, heads),
        "mamba_d_ssm": 8 * heads,
        **{f"{name}_multiplier": random.choice((0.4, 1.0, 1.7)) for name in factors},
        "mlp_multipliers": [random.choice((0.6, 1.0)) for _ in range(2)],
        "ssm_multipliers": [random.choice((0.3, 1.0, 1.1)) for _ in range(5)],
        **_flags(random, "attention_bias", "mlp_bias", "projectors_bias", "mamba_rms_norm", "mamba_norm_before_gate"),
    }


def _mixer(random: Random, heads: int) -> dict[str, Any]:
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": 8,
        "mamba_n_groups": random.choice([groups for groups in range(1, heads + 1) if heads % groups == 0]),
        "mamba_d_state": random.choice(STATE_SIZES),
        "mamba_d_conv": random.randint(2, 4),
        "mamba_chunk_size": random.choice((8, 256)),
        **_flags(random, "mamba_conv_bias", "mamba_proj_bias"),
    }


def _lfm2(random: Random, layers: int, _hidden_size: int) -> dict[str, Any]:
    return {
        **_short_conv(random, layers),
        "block_multiple_of": random.choice((1, 8, 256)),
        "block_ffn_dim_multiplier": random.choice((1.0, 1.3)),
        "block_auto_adjust_ff_dim": random.random() < 0.5,
    }


def _lfm2_moe(random: Random, layers: int, _hidden_size: int) -> dict[str, Any]:
    experts = random.randint(2, 9)
    return {
        **_short_conv(random, layers),
        "num_dense_layers": random.randint(0, layers),
        "num_experts": experts,
        "num_experts_per_tok": random.randint(1, experts),
        "moe_intermediate_size": random.choice((12, 28)),
        "routed_scaling_factor": random.choice((1.0, 2.5)),
        **_flags(random, "norm_topk_prob", "use_expert_bias"),
    }


def _short_conv(random: Random, layers: int) -> dict[str, Any]:
    return {
        "layer_types": random.choices(("conv", "full_attention"), (2, 1), k=layers),
        "conv_L_cache": random.randint(2, 8),
        "norm_eps": random.choice((1e-6, 1e-5, 0.05)),
        **_flags(random, "conv_bias"),
    }


def _flags(random: Random, *names: str) -> dict[str, bool]:
    return {name: random.random() < 0.5 for name in names}
