"""Tiny models: one with every kind of layer, and one of each family that `hybrid_decode` measures."""

from __future__ import annotations

from benchmarks.random_checkpoint import FALCON_H1_MODEL, LFM2_MODEL, MAMBA_MODEL, nemotron_h

TINY = nemotron_h(
    pattern="M-*M",
    hidden_size=48,
    vocab_size=97,
    intermediate_size=72,
    mamba_num_heads=6,
    mamba_head_dim=16,
    ssm_state_size=24,
    n_groups=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
)
_SIZES = {"hidden_size": 48, "vocab_size": 97, "intermediate_size": 96}
_ATTENTION = {"num_attention_heads": 6, "num_key_value_heads": 2}
TINY_HYBRIDS = {
    "mamba": {**MAMBA_MODEL, **_SIZES, "num_hidden_layers": 2, "time_step_rank": 5},
    "lfm2": {
        **LFM2_MODEL,
        **_SIZES,
        **_ATTENTION,
        "block_dim": 48,
        "conv_dim": 48,
        "num_heads": 6,
        "num_hidden_layers": 2,
        "layer_types": ["conv", "full_attention"],
    },
    "falcon_h1": {
        **FALCON_H1_MODEL,
        **_SIZES,
        **_ATTENTION,
        "head_dim": 16,
        "mamba_d_head": 16,
        "mamba_d_ssm": 96,
        "mamba_d_state": 24,
        "mamba_n_heads": 6,
        "num_hidden_layers": 2,
    },
}
