"""A tiny model with every kind of layer."""

from __future__ import annotations

from benchmarks.random_checkpoint import nemotron_h

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
