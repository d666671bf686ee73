"""Plugin fields: an operator's attributes, and what a plugin needs at run time, as TensorRT carries them.

An integer is one INT32, a float one FLOAT32 (infinities included), a string CHARs. TensorRT's parser ends strings of
ONNX attributes with a zero; serialized ones come back as they were given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.spec import AttributeKind, AttributeValue, OpSpec

# Fields in addition to the attributes. The build adds the first two to each node.
CAPABILITIES = "hybridge_capabilities"
ALIASED = "hybridge_aliased"
LAYER = "hybridge_layer"
WORKSPACE = "hybridge_workspace"
SERIALIZED_ONLY = (LAYER, WORKSPACE)
# Workspaces may pass 2 GiB: they are carried in units of the alignment that CallPlan promises.
WORKSPACE_UNIT = 256

_FIELD_TYPES: dict[AttributeKind, str] = {"int": "INT32", "float": "FLOAT32", "string": "CHAR"}
_EXTRA_KINDS: dict[str, AttributeKind] = {CAPABILITIES: "string", ALIASED: "int", LAYER: "string", WORKSPACE: "int"}


@dataclass(frozen=True)
class FieldValues:
    """The fields of one plugin. ``extras``: those of the names above that are present."""

    attributes: dict[str, AttributeValue]
    extras: dict[str, AttributeValue]


def field_kinds(spec: OpSpec) -> dict[str, AttributeKind]:
    """Kind of every field that the plugin of ``spec`` may have: its attributes first."""
    return {**{attribute.name: attribute.kind for attribute in spec.attributes}, **_EXTRA_KINDS}


def make_fields(trt: Any, spec: OpSpec, values: Mapping[str, AttributeValue]) -> list[Any]:
    """``trt.PluginField`` of each value. They point into arrays that live as long as they do."""
    kinds = field_kinds(spec)
    return [_field(trt, name, kinds[name], value) for name, value in values.items()]


def values_from_fields(spec: OpSpec, fields: Iterable[Any]) -> FieldValues:
    """The values of a field collection, attributes completed by their defaults.

    UnsupportedError for an attribute that is unknown or has a value that the operator does not know; EngineError for
    a field of another type than its kind.
    """
    kinds = field_kinds(spec)
    attributes: dict[str, AttributeValue] = {}
    extras: dict[str, AttributeValue] = {}
    for field in fields:
        kind = kinds.get(field.name)
        value = _value(field, kind) if kind is not None else field.name
        (extras if field.name in _EXTRA_KINDS else attributes)[field.name] = value
    return FieldValues(spec.complete_attributes(attributes), extras)


def _field(trt: Any, name: str, kind: AttributeKind, value: AttributeValue) -> Any:
    data: Any
    if kind == "int":
        data = np.array([value], np.int32)
    elif kind == "float":
        data = np.array([value], np.float32)
    else:
        data = np.frombuffer(str(value).encode(), np.int8)
    return trt.PluginField(name, data, getattr(trt.PluginFieldType, _FIELD_TYPES[kind]))


def _value(field: Any, kind: AttributeKind) -> AttributeValue:
    if field.type.name != _FIELD_TYPES[kind]:
        raise EngineError(
            f"expected the plugin field {field.name} of type {_FIELD_TYPES[kind]}, found {field.type.name}: "
            "build the engine again"
        )
    data = np.asarray(field.data) if field.size else np.empty(0, np.int8)
    if kind == "string":
        return data.astype(np.int8).tobytes().split(b"\0")[0].decode()
    return int(data[0]) if kind == "int" else float(data[0])
