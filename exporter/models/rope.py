"""Rotary position embedding frequencies from both config styles: rope_parameters, or rope_theta with rope_scaling.

Formulas: RoFormer (Su et al. 2021); position interpolation (Chen et al. 2023) for "linear"; YaRN (Peng et al.
2023) for "yarn"; the Llama 3.1 model card's frequency smoothing for "llama3".
"""

from __future__ import annotations

import math
from typing import Any

from artifact.errors import UnsupportedError
from artifact.json_fields import Fields
from exporter.models.decoder_config import RopeConfig
from exporter.models.hf_config import HfConfig

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def rope_from_config(config: HfConfig, head_dim: int, default_partial: float = 1.0) -> RopeConfig:
    """The rotary embedding that ``config`` describes; UnsupportedError names a rope_type that is not supported."""
    parameters = config.raw("rope_parameters", None)
    scaling = config.raw("rope_scaling", None)
    for name, value in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if value is not None and not isinstance(value, dict):
            raise config.fail(name, "an object or null")
    merged: dict[str, Any] = {**(scaling or {}), **(parameters or {})}
    theta = merged.pop("rope_theta", None) or config.scalar("rope_theta", default=10000.0)
    config.ignore("rope_theta")
    partial = merged.pop("partial_rotary_factor", None)
    top_level_partial = config.scalar("partial_rotary_factor", default=default_partial)
    factor = float(partial if partial is not None else top_level_partial)
    merged["rope_type"] = merged.pop("type", None) or merged.get("rope_type") or "default"
    rotary_dim = int(head_dim * factor)
    if not 0 < factor <= 1 or rotary_dim % 2 or rotary_dim == 0:
        raise UnsupportedError(
            f"config.json: partial_rotary_factor {factor} of head_dim {head_dim} gives {rotary_dim} rotary "
            "dimensions: expected a positive even number"
        )
    max_positions = config.integer("max_position_embeddings", None)
    fields = Fields(merged, "config.json: rope_parameters", UnsupportedError)
    return _rope(fields, float(theta), rotary_dim, max_positions)


def _rope(fields: Fields, theta: float, rotary_dim: int, max_positions: int | None) -> RopeConfig:
    kind = fields.raw("rope_type")
    if kind not in ROPE_TYPES:
        raise UnsupportedError(f"config.json: rope_type: supported are {', '.join(ROPE_TYPES)}, found {kind!r}")
    base = [theta ** (-2.0 * i / rotary_dim) for i in range(rotary_dim // 2)]
    scaling = 1.0
    if kind == "linear":
        factor = fields.number("factor")
        base = [f / factor for f in base]
    elif kind == "llama3":
        base = _llama3(fields, base)
    elif kind == "yarn":
        base, scaling = _yarn(fields, base, theta, rotary_dim, max_positions)
    fields.raw("original_max_position_embeddings", None)
    fields.refuse_unknown()
    return RopeConfig(rotary_dim, tuple(base), scaling)


def _llama3(fields: Fields, base: list[float]) -> list[float]:
    factor, low, high = (fields.number(n) for n in ("factor", "low_freq_factor", "high_freq_factor"))
    original = fields.integer("original_max_position_embeddings", minimum=1)
    result = []
    for frequency in base:
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            result.append(frequency)
        elif wavelength > original / low:
            result.append(frequency / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            result.append((1 - smooth) * frequency / factor + smooth * frequency)
    return result


def _yarn(
    fields: Fields, base: list[float], theta: float, dim: int, max_positions: int | None
) -> tuple[list[float], float]:
    """YaRN: interpolate low frequencies, keep high ones, ramp between ``beta_fast`` and ``beta_slow`` rotations."""
    original = fields.integer("original_max_position_embeddings", None) or max_positions
    factor = fields.number("factor")
    if original is None:
        raise fields.fail("original_max_position_embeddings", "an integer")
    fast = fields.number("beta_fast", None) or 32.0
    slow = fields.number("beta_slow", None) or 1.0

    def dimension(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(fast), dimension(slow)
    if fields.raw("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(dim // 2)]
    frequencies = [f / factor * r + f * (1 - r) for f, r in zip(base, ramp, strict=True)]
    return frequencies, _yarn_attention_scaling(fields, factor)


def _yarn_attention_scaling(fields: Fields, factor: float) -> float:
    explicit = fields.number("attention_factor", None)
    mscale, mscale_all = fields.number("mscale", None), fields.number("mscale_all_dim", None)

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if explicit is not None:
        return float(explicit)
    if mscale and mscale_all:
        return scale(mscale) / scale(mscale_all)
    return scale(1.0)
