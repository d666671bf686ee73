"""Fields that the families with Mamba2 mixers share, under their common names."""

from __future__ import annotations

from hybridge.exporter.families.decoder_config import MambaConfig
from hybridge.exporter.families.hf_config import HfConfig

ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "relu", "relu2")
# The convolution op fuses SiLU; "swish" is its other name.
CONV_ACTIVATIONS = ("silu", "swish")
UNBOUNDED = (0.0, float("inf"))


def mamba_d_mixer(config: HfConfig, hidden_size: int) -> MambaConfig:
    """The mixer of configs that spell their fields ``mamba_d_*`` (bamba, granitemoehybrid)."""
    heads = config.positive("mamba_n_heads")
    expand = config.positive("mamba_expand", default=2)
    head_dim = expand * hidden_size // heads
    if config.raw("mamba_d_head", "auto") != "auto":
        head_dim = config.positive("mamba_d_head")
    if heads * head_dim != expand * hidden_size:
        raise config.fail(
            "mamba_n_heads", f"{expand * hidden_size} (mamba_expand x hidden_size) / mamba_d_head {head_dim}"
        )
    config.expect("hidden_act", CONV_ACTIVATIONS, "silu")
    groups = config.positive("mamba_n_groups", default=1)
    if heads % groups:
        raise config.fail("mamba_n_groups", f"a divisor of mamba_n_heads {heads}")
    return MambaConfig(
        num_heads=heads,
        head_dim=head_dim,
        state_size=config.positive("mamba_d_state", default=256),
        num_groups=groups,
        conv_kernel=config.positive("mamba_d_conv", default=4),
        chunk_size=config.positive("mamba_chunk_size", default=256),
        norm_groups=groups,
        proj_bias=config.flag("mamba_proj_bias", default=False, null=False),
        conv_bias=config.flag("mamba_conv_bias", default=True, null=False),
        time_step_limit=config.interval("time_step_limit", default=UNBOUNDED),
    )


def activation_of(config: HfConfig, name: str = "hidden_act", default: str = "silu") -> str:
    """The activation of an MLP; "swish" is another name of "silu"."""
    activation: str = config.expect(name, ACTIVATIONS, default)
    return "silu" if activation == "swish" else activation


def head_counts(config: HfConfig, absent_kv_heads: int | None = None) -> tuple[int, int]:
    """Query heads and key/value heads; CheckpointError when the second does not divide the first.

    A null num_key_value_heads means as many as query heads; an absent one ``absent_kv_heads``, where that is given.
    """
    heads = config.positive("num_attention_heads")
    kv_heads = config.positive("num_key_value_heads", default=absent_kv_heads or heads, null=heads)
    if heads % kv_heads:
        raise config.fail("num_key_value_heads", f"a divisor of num_attention_heads {heads}")
    return heads, kv_heads


def head_dim_of(config: HfConfig, hidden_size: int, heads: int) -> int:
    """``head_dim``, or hidden_size / num_attention_heads where the config does not give it."""
    if config.raw("head_dim", None) is None and hidden_size % heads:
        raise config.fail("hidden_size", f"a multiple of num_attention_heads {heads}")
    return config.positive("head_dim", default=hidden_size // heads, null=hidden_size // heads)
