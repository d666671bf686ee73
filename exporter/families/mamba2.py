"""Mamba2: Mamba2 mixers only."""

from __future__ import annotations

from hybridge.exporter.families.common_fields import CONV_ACTIVATIONS, UNBOUNDED
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mamba_fields import mamba_decoder_of
from hybridge.exporter.families.recurrent_config import MambaConfig


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a mamba2 config."""
    hidden_size = config.positive("hidden_size")
    heads, head_dim = config.positive("num_heads"), config.positive("head_dim")
    expand = config.positive("expand", default=2)
    if heads * head_dim != expand * hidden_size:
        raise config.fail("num_heads", f"{expand * hidden_size} (expand x hidden_size) / head_dim {head_dim}")
    groups = config.positive("n_groups", default=8)
    if heads % groups:
        raise config.fail("n_groups", f"a divisor of num_heads {heads}")
    config.expect("hidden_act", CONV_ACTIVATIONS, "silu")
    mixer = MambaConfig(
        num_heads=heads,
        head_dim=head_dim,
        state_size=config.positive("state_size"),
        num_groups=groups,
        conv_kernel=config.positive("conv_kernel", default=4),
        chunk_size=config.positive("chunk_size", default=256),
        norm_groups=groups,
        proj_bias=config.flag("use_bias", default=False),
        conv_bias=config.flag("use_conv_bias", default=True),
        time_step_limit=config.interval("time_step_limit", default=UNBOUNDED),
    )
    config.expect("rms_norm", (True,), True)
    config.same(heads * head_dim, "num_heads x head_dim", "intermediate_size")
    rank = config.raw("time_step_rank", "auto")
    if isinstance(rank, str) and rank != "auto":
        raise config.fail("time_step_rank", 'an integer or "auto"')
    # Early configs have it as true, though their models were trained, and are run everywhere, with the gate first.
    config.ignore("norm_before_gate")
    return mamba_decoder_of(config, "mamba2", BlockConfig("norm", "mixer", mixer), tied=False)
