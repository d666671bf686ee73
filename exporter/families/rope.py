"""Rotary position embedding frequencies from both config styles: rope_parameters, or rope_theta with rope_scaling.

Formulas: RoFormer (Su et al. 2021); position interpolation (Chen et al. 2023) for "linear"; YaRN (Peng et al.
2023) for "yarn"; the Llama 3.1 model card's frequency smoothing for "llama3".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hybridge.artifact.errors import UnsupportedError
from hybridge.artifact.json_fields import Fields, is_count
from hybridge.exporter.families.attention_config import RopeConfig
from hybridge.exporter.families.hf_config import HfConfig, finite
from hybridge.exporter.families.rope_length import dynamic, longrope

ROPE_TYPES = ("default", "dynamic", "linear", "llama3", "longrope", "proportional", "yarn")
LARGEST_BETA = 1e9
# Larger ones are damage: each dimension is a number of the graph.
MOST_ROTARY = 2**16
# How many frequencies turn by time, height and width in a picture.
SECTIONS = "mrope_section"
# Where a config may speak of a rotary embedding.
ROPE_FIELDS = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")


def rope_from_config(
    config: HfConfig,
    head_dim: int,
    default_partial: float = 1.0,
    partial: bool = False,
    ignored: tuple[str, ...] = (),
    absent_theta: float = 10000.0,
    types: Mapping[str, str] | None = None,
    original: int | None = None,
    interleaved: bool = False,
) -> RopeConfig:
    """The rotary embedding that ``config`` describes; UnsupportedError names a rope_type that is not supported.

    ``partial`` tells whether the family can rotate a part of each head, by default the share ``default_partial``.
    ``ignored`` are parameters without influence on it. ``types``: the names of types that the family knows, and what
    each means. ``original``: the positions that the model was first trained for, where the config gives them outside.
    ``interleaved``: of pairs of neighbours.
    """
    fields = _rope_fields(config, types)
    for name in ignored:
        fields.raw(name, None)
    if SECTIONS in ignored:
        _check_sections(fields)
    theta = number(fields, "rope_theta") or config.scalar("rope_theta", default=absent_theta, positive=True)
    config.ignore("rope_theta")
    outside = config.scalar("partial_rotary_factor", default=default_partial, positive=True)
    factor = number(fields, "partial_rotary_factor") or outside
    if factor != default_partial and not partial:
        raise UnsupportedError(f"config.json: partial_rotary_factor: expected {default_partial}, found {factor}")
    if factor > 1:
        raise UnsupportedError(f"config.json: partial_rotary_factor: expected at most 1, found {factor}")
    positions = config.positive("max_position_embeddings", default=None)
    return replace(rope_of(fields, head_dim, theta, factor, positions, original), interleaved=interleaved)


def fill_rope(config: HfConfig, absent: Mapping[str, Any]) -> None:
    """Let a config that says nothing of the rotary embedding's parameters have those of ``absent``."""
    if config.raw("rope_parameters", None) is None and not config.raw("rope_scaling", None):
        config.replace(rope_parameters=absent, rope_scaling=None)


def rope_of(
    fields: Fields,
    head_dim: int,
    theta: float,
    factor: float,
    max_positions: int | None,
    original: int | None = None,
) -> RopeConfig:
    """The rotary embedding of one object ``fields``, of which ``theta`` and the partial ``factor`` have been read."""
    proportional = fields.raw("rope_type") == "proportional"
    rotary_dim = 2 * int(head_dim * factor // 2) if proportional else int(head_dim * factor)
    if rotary_dim % 2 or rotary_dim == 0:
        raise UnsupportedError(
            f"config.json: partial_rotary_factor {factor} of head_dim {head_dim} gives {rotary_dim} rotary "
            "dimensions: expected a positive even number"
        )
    if rotary_dim > MOST_ROTARY:
        raise UnsupportedError(
            f"config.json: head_dim: expected at most {MOST_ROTARY} rotary dimensions, found {rotary_dim}"
        )
    if theta <= 1:
        raise UnsupportedError(f"config.json: rope_theta: expected a number above 1, found {theta}")
    exponent_dim = head_dim if proportional else rotary_dim
    rope = _rope(fields, theta, rotary_dim, exponent_dim, (max_positions, original))
    if not all(0 < f < math.inf for f in (*rope.inv_freq, *(rope.beyond or ()), rope.attention_scaling)):
        raise UnsupportedError("config.json: the rotary embedding's frequencies are not positive finite numbers")
    if not proportional:
        return rope
    unturned = (0.0,) * ((head_dim - rotary_dim) // 2)
    return replace(rope, rotary_dim=head_dim, inv_freq=rope.inv_freq + unturned)


def _rope_fields(config: HfConfig, types: Mapping[str, str] | None) -> Fields:
    """The object that holds the parameters: rope_scaling in older configs, rope_parameters in newer ones."""
    config.ignore("rope_parameters", "rope_scaling")
    given = [n for n in ("rope_parameters", "rope_scaling") if config.raw(n, None) is not None]
    name = config.name_of(*given) if given else "rope_parameters"
    value = config.raw(name, None)
    if value is not None and not isinstance(value, dict):
        raise config.fail(name, "an object or null")
    return rope_fields(value or {}, name, types)


def rope_fields(value: Mapping[str, Any], name: str, types: Mapping[str, str] | None = None) -> Fields:
    """The parameters ``value`` of the field ``name``, with a rope_type, which ``types`` may rename."""
    data = dict(value)
    old_spelling = data.pop("type", data.get("rope_type", "default"))
    kind = data.setdefault("rope_type", old_spelling)
    if old_spelling != kind:
        raise UnsupportedError(f"config.json: {name}: type {old_spelling!r} and rope_type {kind!r} contradict")
    if types is not None:
        if not isinstance(kind, str) or kind not in types:
            raise UnsupportedError(f"config.json: rope_type: expected one of {', '.join(types)}, found {kind!r}")
        data["rope_type"] = types[kind]
    return Fields(data, f"config.json: {name}", UnsupportedError)


def number(fields: Fields, name: str) -> float | None:
    """A positive finite number; None where it is absent."""
    return finite(fields, name, positive=True) if name in fields else None


def _number_or_null(fields: Fields, name: str, positive: bool = True) -> float | None:
    """A finite number, above 0 unless ``positive`` is false; None where it is absent or null."""
    return None if fields.raw(name, None) is None else finite(fields, name, positive)


def _check_sections(fields: Fields) -> None:
    sections = fields.raw(SECTIONS, [0, 0, 0])
    if not isinstance(sections, list) or len(sections) < 3 or not all(is_count(size) for size in sections):
        raise fields.fail(SECTIONS, "a list of three sizes")


def _rope(
    fields: Fields, theta: float, rotary_dim: int, exponent_dim: int, positions: tuple[int | None, int | None]
) -> RopeConfig:
    kind = fields.raw("rope_type")
    if kind not in ROPE_TYPES:
        raise UnsupportedError(f"config.json: rope_type: expected one of {', '.join(ROPE_TYPES)}, found {kind!r}")
    base = [theta ** (-2.0 * i / exponent_dim) for i in range(rotary_dim // 2)]
    rope = RopeConfig(rotary_dim, tuple(base))
    if kind == "linear":
        factor = finite(fields, "factor", positive=True)
        rope = replace(rope, inv_freq=tuple(f / factor for f in base))
    elif kind == "proportional":
        factor = number(fields, "factor") or 1.0
        rope = replace(rope, inv_freq=tuple(f / factor for f in base))
    elif kind == "llama3":
        rope = replace(rope, inv_freq=tuple(_llama3(fields, base)))
    elif kind == "yarn":
        frequencies, scaling = _yarn(fields, base, theta, rotary_dim, positions[0])
        rope = RopeConfig(rotary_dim, tuple(frequencies), scaling)
    elif kind == "longrope":
        rope = longrope(fields, base, rotary_dim, positions[1], positions[0])
    elif kind == "dynamic":
        rope = dynamic(fields, base, rotary_dim, positions[0])
    fields.raw("original_max_position_embeddings", None)
    if unread := fields.unread():
        raise fields.fail(unread[0], f"no such field with rope_type {kind!r}, because it may change the embedding")
    return rope


def _llama3(fields: Fields, base: list[float]) -> list[float]:
    names = ("factor", "low_freq_factor", "high_freq_factor")
    factor, low, high = (finite(fields, name, positive=True) for name in names)
    if low >= high:
        raise fields.fail("high_freq_factor", f"more than low_freq_factor {low}")
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
    original = max_positions
    if "original_max_position_embeddings" in fields:
        original = fields.integer("original_max_position_embeddings", minimum=1)
    factor = finite(fields, "factor", positive=True)
    if original is None:
        raise fields.fail("original_max_position_embeddings", "an integer")
    fast = _number_or_null(fields, "beta_fast") or 32.0
    slow = _number_or_null(fields, "beta_slow") or 1.0

    if max(fast, slow) > LARGEST_BETA:
        raise fields.fail("beta_fast", f"numbers of rotations of at most {LARGEST_BETA:g}")

    def dimension(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(fast), dimension(slow)
    if fields.boolean("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(dim // 2)]
    frequencies = [f / factor * r + f * (1 - r) for f, r in zip(base, ramp, strict=True)]
    return frequencies, _yarn_attention_scaling(fields, factor)


def yarn_score_factor(config: HfConfig) -> float:
    """The factor of DeepSeek's code for the scores with a yarn rotary embedding: the square of its mscale_all_dim's
    scale. Call it after ``rope_from_config``."""
    given = (config.raw(name, None) for name in ("rope_parameters", "rope_scaling"))
    fields = next((value for value in given if isinstance(value, dict)), {})
    weight, factor = fields.get("mscale_all_dim") or 0, fields.get("factor") or 1
    if not weight or factor <= 1 or fields.get("rope_type", fields.get("type", "default")) == "default":
        return 1.0
    return float((0.1 * weight * math.log(factor) + 1.0) ** 2)


def _yarn_attention_scaling(fields: Fields, factor: float) -> float:
    explicit = _number_or_null(fields, "attention_factor")
    # A weight of 0 counts as none.
    mscale, mscale_all = (_number_or_null(fields, name, positive=False) for name in ("mscale", "mscale_all_dim"))

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if explicit is not None:
        return explicit
    if mscale and mscale_all:
        return scale(mscale) / scale(mscale_all)
    return scale(1.0)
