"""The kinds of decoder layers that config.json names."""

from __future__ import annotations

ATTENTION, MAMBA, GATED_DELTA_NET, SHORT_CONV = "attention", "mamba", "gated_delta_net", "short_conv"
LIGHTNING_ATTENTION = "lightning_attention"
RG_LRU = "rg_lru"
# Attention and Mamba2 side by side in one layer, which has the states of both.
ATTENTION_AND_MAMBA = "attention_and_mamba"
# Attention whose queries, keys and values come from a convolution, which has a state.
ATTENTION_AND_CONV = "attention_and_conv"
ATTENTION_LAYER_TYPES = (ATTENTION, ATTENTION_AND_MAMBA, ATTENTION_AND_CONV)
# Their only state of fixed size is that of a convolution.
CONV_LAYER_TYPES = (SHORT_CONV, ATTENTION_AND_CONV)
RECURRENT_LAYER_TYPES = (
    *(MAMBA, GATED_DELTA_NET, LIGHTNING_ATTENTION, RG_LRU),
    *(ATTENTION_AND_MAMBA, *CONV_LAYER_TYPES),
)
# Layers that hold no state: a decoder layer that is only an MLP or only a mixture of experts.
STATELESS_LAYER_TYPES = ("mlp", "moe")
LAYER_TYPES = (ATTENTION, *RECURRENT_LAYER_TYPES, *STATELESS_LAYER_TYPES)
