"""OLMo 3: OLMo 2 with sliding windows in most layers, and a scaled rotary embedding only in the others."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.common_fields import FULL, head_dim_of
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.olmo2 import attention_part, olmo_decoder
from hybridge.exporter.families.rope_by_kind import KindRope, ropes_by_kind
from hybridge.exporter.families.sliding_window import SLIDING, layer_windows

ABSENT_WINDOW, ABSENT_THETA, FULL_EVERY = 4096, 5e5, 4


def parse(config: HfConfig) -> DecoderConfig:
    """Translate an olmo3 config."""
    head_dim, count = head_dim_of(config), config.layer_count()
    if "rope_theta" in config and config.scalar("rope_theta") != ABSENT_THETA:
        # transformers uses it only in layers with full attention.
        raise config.fail("rope_theta", f"{ABSENT_THETA:g}, or a rope_theta for each kind of layer in rope_parameters")
    kind = KindRope(ABSENT_THETA)
    ropes = ropes_by_kind(config, head_dim, {FULL: kind, SLIDING: kind}, scaled=FULL)
    base = attention_part(config, head_dim, None)
    window = config.positive("sliding_window", default=ABSENT_WINDOW)
    kinds = [SLIDING if (index + 1) % FULL_EVERY else FULL for index in range(count)]
    windows = layer_windows(config, count, kinds, window)
    return olmo_decoder(
        config, "olmo3", [replace(base, rope=ropes[SLIDING if w else FULL], sliding_window=w) for w in windows]
    )
