"""The groups of kernel benchmarks; without torch, for tools that only need the names."""

# Module and function, which yields the cases.
GROUPS = {
    "update_ssm_state_decode": "update_ssm_state:decode_cases",
    "update_ssm_state_prefill": "update_ssm_state:prefill_cases",
    "mamba2_conv_scan": "mamba2_conv_scan:cases",
    "causal_conv1d": "causal_conv1d:cases",
    "selective_scan_decode": "selective_scan:decode_cases",
    "selective_scan_prefill": "selective_scan:prefill_cases",
    "linear_decode": "products:linear_cases",
    "linear_decode_quantized": "quantized:cases",
    "routed_experts": "products:experts_cases",
    "gated_delta_rule_decode": "gated_delta_rule:decode_cases",
    "gated_delta_rule_prefill": "gated_delta_rule:prefill_cases",
    "kda_decode": "gated_delta_rule:channel_decode_cases",
    "kda_prefill": "gated_delta_rule:channel_prefill_cases",
    "paged_attention_prefill": "paged_attention:prefill_cases",
    "paged_attention_decode": "paged_attention:decode_cases",
    "drafts": "drafts:cases",
    "sampling": "sampling:cases",
    "older_gpus": "older_gpus:cases",
}
