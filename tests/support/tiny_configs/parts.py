"""Fields that the configs of several families share."""

COMMON = {"vocab_size": 97, "hidden_size": 48, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
ATTENTION = {"num_attention_heads": 6, "num_key_value_heads": 2}
MAMBA = {
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}

GATED_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 4,
}
