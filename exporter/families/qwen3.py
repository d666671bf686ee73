"""Qwen3: Llama's layout with a norm on every query and key head, and an optional sliding window."""

from __future__ import annotations

from dataclasses import replace

from hybridge.exporter.families.common_fields import FULL, activation_of, attention_of, decoder_of, layer_of
from hybridge.exporter.families.decoder_config import DecoderConfig, MlpConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.rope import rope_from_config

ABSENT_KV_HEADS, ABSENT_HEAD_DIM, ABSENT_WINDOW = 32, 128, 4096
SLIDING = "sliding_attention"


def parse(config: HfConfig) -> DecoderConfig:
    """Translate a qwen3 config."""
    head_dim = config.positive("head_dim", default=ABSENT_HEAD_DIM)
    full = attention_of(config, head_dim, rope_from_config(config, head_dim), ABSENT_KV_HEADS, qk_norm=True)
    mlp = MlpConfig(config.positive("intermediate_size"), activation_of(config))
    windows = _windows(config)
    return decoder_of(
        config, "qwen3", [layer_of("self_attn", replace(full, sliding_window=window), mlp) for window in windows]
    )


def _windows(config: HfConfig) -> list[int | None]:
    """The sliding window of each layer, None for full attention."""
    count = config.layer_count()
    used = config.flag("use_sliding_window", default=False)
    # The field is checked even where use_sliding_window switches it off.
    window = config.positive("sliding_window", default=ABSENT_WINDOW, null=None)
    window = window if used else None
    first = config.integer("max_window_layers", 28)
    kinds = config.array("layer_types", None)
    if kinds is None:
        kinds = [SLIDING if window and i >= first else FULL for i in range(count)]
    if len(kinds) != count or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise config.fail("layer_types", f"a list of num_hidden_layers {count} entries, {FULL} or {SLIDING}")
    if window is None and SLIDING in kinds:
        raise config.fail("sliding_window", f"a window with use_sliding_window, because layer_types has {SLIDING}")
    return [window if kind == SLIDING else None for kind in kinds]
