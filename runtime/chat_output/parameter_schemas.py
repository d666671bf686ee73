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
_COMBINED = frozenset({"anyOf", "oneOf", "allOf"})
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
    top = resolved(function, function)
    if not isinstance(top, Mapping) or _COMBINED & top.keys():
        raise RequestError(
            "tools: expected parameters in `properties` alone, as the model's format names each, found a reference "
            "to nothing, or anyOf, oneOf or allOf: correct the schema"
        )
    properties, required = top.get("properties") or {}, top.get("required") or ()
    named = isinstance(properties, Mapping) and isinstance(required, Sequence)
    if not named or not all(isinstance(name, str) and name in properties for name in required):
        raise RequestError(
            "tools: expected parameters with an object `properties`, and a list `required` of its names, found others: "
            "correct the schema"
        )
    found = []
    for key, value in properties.items():
        schema = value if isinstance(value, Mapping) else {}
        alone = _with_root(schema, function) if '"$ref"' in json.dumps(schema) else schema
        found.append(Parameter(key, schema, {**alone, **options_of(function)}, key in required))
    return found


def options_of(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """llguidance's options in the schema of a function."""
    return {_OPTIONS: function[_OPTIONS]} if _OPTIONS in function else {}


def _with_root(schema: Mapping[str, Any], function: Mapping[str, Any]) -> Mapping[str, Any]:
    """``schema``, a part of that of the function, which is among its definitions then."""

    def moved(each: dict[str, Any]) -> dict[str, Any]:
        target = each.get("$ref")
        if not isinstance(target, str) or not target.startswith("#"):
            return each
        return {**each, "$ref": f"#/$defs/{_ROOT}{target[1:]}"}

    own, root = (json.loads(json.dumps(each), object_hook=moved) for each in (schema, function))
    return {**own, "$defs": {_ROOT: root}}


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
