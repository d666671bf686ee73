"""The supported families with layers that have a recurrent or a convolution state."""

from __future__ import annotations

from hybridge.exporter.families.recurrent_config import RecurrentConfig
from hybridge.exporter.families.registry import decoder_config
from tests.support.tiny_models import BASE_CONFIGS


def _has_states(family: str) -> bool:
    decoder = decoder_config({"model_type": family, **BASE_CONFIGS[family]})
    bodies = (body for layer in decoder.layers for block in layer.blocks for body in block.bodies)
    return any(isinstance(body, RecurrentConfig) for body in bodies)


RECURRENT = tuple(family for family in sorted(BASE_CONFIGS) if _has_states(family))
