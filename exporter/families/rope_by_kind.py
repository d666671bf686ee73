"""One rotary embedding for each kind of attention layer, as configs with sliding and full attention give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybridge.artifact.errors import UnsupportedError
from hybridge.exporter.families.attention_config import RopeConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.rope import number, rope_fields, rope_of


@dataclass(frozen=True)
class KindRope:
    """One kind of layer: the rope_theta used where its object has none, the field of the config that
    overrides it, and the rope_parameters where the config has none. ``required``: rope_parameters must have an object
    for the kind."""

    theta: float
    theta_field: str | None = None
    absent: Mapping[str, Any] | None = None
    required: bool = False


def ropes_by_kind(
    config: HfConfig, head_dim: int, kinds: Mapping[str, KindRope], scaled: str | None = None
) -> dict[str, RopeConfig]:
    """The rotary embedding of each of ``kinds``, from an object for each in rope_parameters.

    The older rope_scaling adds to the parameters of the kind ``scaled``; without one it is refused.
    UnsupportedError: parameters that are not supported, or that are not given by kind.
    """
    objects = _objects(config, kinds)
    scaling = config.raw("rope_scaling", None)
    if scaling is not None:
        if scaled is None or not isinstance(scaling, dict):
            raise config.fail("rope_scaling", "null" if scaled is None else "an object or null")
        objects[scaled] |= scaling
    positions = config.positive("max_position_embeddings", default=None)
    ropes = {}
    for kind, settings in kinds.items():
        merged = " with rope_scaling" if scaling is not None and kind == scaled else ""
        fields = rope_fields(objects[kind], f"rope_parameters.{kind}{merged}")
        outside = settings.theta
        if settings.theta_field is not None:
            outside = config.scalar(settings.theta_field, default=settings.theta, positive=True)
        inside = number(fields, "rope_theta")
        theta = outside if inside is None else inside
        factor = number(fields, "partial_rotary_factor") or 1.0
        if theta <= 1:
            field = f"rope_parameters.{kind}.rope_theta" if inside else settings.theta_field
            raise UnsupportedError(f"config.json: {field}: expected a number above 1, found {theta}")
        if factor > 1 or (factor != 1 and fields.raw("rope_type") != "proportional"):
            raise fields.fail("partial_rotary_factor", "1, or at most 1 with rope_type 'proportional'")
        ropes[kind] = rope_of(fields, head_dim, theta, factor, positions)
    return ropes


def _objects(config: HfConfig, kinds: Mapping[str, KindRope]) -> dict[str, dict[str, Any]]:
    """The parameters of each kind, without those of rope_scaling."""
    value = config.raw("rope_parameters", None)
    if value is None:
        return {kind: dict(settings.absent or {}) for kind, settings in kinds.items()}
    if not isinstance(value, dict) or not set(value) <= set(kinds):
        raise config.fail("rope_parameters", f"an object with the fields {' and '.join(kinds)}, or null")
    objects = {}
    for kind, settings in kinds.items():
        own = value.get(kind)
        if not isinstance(own, dict) and (own is not None or settings.required):
            raise config.fail("rope_parameters", f"an object for {kind}")
        objects[kind] = dict(own or {})
    return objects
