"""The supported families by the layers of their tiny models."""

from __future__ import annotations

from typing import Any

from hybridge.exporter.families.recurrent_config import RecurrentConfig
from hybridge.exporter.families.registry import decoder_config
from tests.support.tiny_models import BASE_CONFIGS


def _bodies(family: str) -> list[Any]:
    decoder = decoder_config({"model_type": family, **BASE_CONFIGS[family]})
    return [body for layer in decoder.layers for block in layer.blocks for body in block.bodies]


# Families with a recurrent or a convolution state.
RECURRENT = tuple(f for f in sorted(BASE_CONFIGS) if any(isinstance(body, RecurrentConfig) for body in _bodies(f)))
# Families with a sliding window.
WINDOWED = tuple(f for f in sorted(BASE_CONFIGS) if any(getattr(body, "sliding_window", None) for body in _bodies(f)))
