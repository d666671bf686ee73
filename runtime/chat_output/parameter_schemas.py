"""The schemas of a function's parameters, each of which can be read without the others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from hybridge.artifact.errors import RequestError

# Where the function's own schema is in the schema of a parameter that refers to it.
_ROOT = "root"
_OPTIONS = "x-guidance"
# References may form a circle.
_MOST_REFERENCES = 100


@dataclass(frozen=True)
class Parameter:
    """schema: as in the function's schema. alone: the same values, without references to the function's schema."""

    key: str
    schema: Mapping[str, Any]
    alone: Mapping[str, Any]
    required: bool


def parameters_of(function: Mapping[str, Any]) -> list[Parameter]:
    """The parameters in the schema of a function's arguments, in its order; RequestError where they have no names."""
    properties, required = function.get("properties") or {}, function.get("required") or ()
    if not isinstance(properties, Mapping) or not isinstance(required, Sequence):
        raise RequestError(
            "tools: expected parameters with an object `properties` and a list `required`, found "
            f"{type(properties).__name__} and {type(required).__name__}: correct the schema"
        )
    options = options_of(function)
    found = []
    for key, value in properties.items():
        schema = value if isinstance(value, Mapping) else {}
        alone = _with_root(function, key) if '"$ref"' in json.dumps(schema) else schema
        found.append(Parameter(key, schema, {**alone, **options}, key in required))
    return found


def options_of(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """llguidance's options in the schema of a function."""
    return {_OPTIONS: function[_OPTIONS]} if _OPTIONS in function else {}


def _with_root(function: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The schema of parameter ``key`` with that of the function among its definitions."""

    def moved(each: dict[str, Any]) -> dict[str, Any]:
        target = each.get("$ref")
        if not isinstance(target, str) or not target.startswith("#"):
            return each
        return {**each, "$ref": f"#/$defs/{_ROOT}{target[1:]}"}

    root = json.loads(json.dumps(function), object_hook=moved)
    return {**root["properties"][key], "$defs": {_ROOT: root}}


def resolved(schema: object, function: Mapping[str, Any]) -> object:
    """``schema`` itself, or what it refers to within the schema of a function; None where there is no such part."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, Mapping):
            break
        parts, target = schema.get("allOf"), schema.get("$ref")
        if isinstance(parts, list) and len(parts) == 1 and "type" not in schema:
            schema = parts[0]
        elif isinstance(target, str) and target.startswith("#"):
            schema = _part(function, target)
        else:
            return schema
    return None


def _part(function: Any, target: str) -> Any:
    """What a reference within the schema of a function refers to, None where it has no such part."""
    for name in target.split("/")[1:]:
        name = unquote(name).replace("~1", "/").replace("~0", "~")
        function = function.get(name) if isinstance(function, Mapping) else None
    return function
