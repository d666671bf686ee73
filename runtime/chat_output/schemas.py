"""Types of tool parameters, for formats that write values without quotes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hybridge.runtime.chat_output.json_text import loaded

# Name of a function -> JSON schema of its arguments.
Schemas = Mapping[str, Mapping[str, Any]]
_STRING = "string"


def parameter_types(schemas: Schemas, function: str, parameter: str) -> frozenset[str]:
    """The JSON types that the parameter accepts; empty where the schema does not say."""
    properties = schemas.get(function, {}).get("properties")
    schema = properties.get(parameter) if isinstance(properties, Mapping) else None
    return _types(schema)


def is_string(types: frozenset[str]) -> bool:
    """Whether every value counts as a string, as for parameters without a declared type."""
    return types <= {_STRING}


def json_from_text(text: str, types: frozenset[str]) -> str:
    """The JSON text of a value written without quotes: unchanged if it has one of ``types``, else as a string."""
    value = loaded(text)
    is_json = value is not None or text.strip() == "null"
    return json.dumps(value if is_json and _accepts(types, value) else text, ensure_ascii=False)


def _accepts(types: frozenset[str], value: object) -> bool:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return _json_type(value) in types or ("integer" in types and whole)


def _types(schema: object) -> frozenset[str]:
    if not isinstance(schema, Mapping):
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(each for each in named if isinstance(each, str))
    if isinstance(schema.get("enum"), list):
        return frozenset(_json_type(each) for each in schema["enum"])
    parts = schema.get("anyOf") or schema.get("oneOf")
    return frozenset().union(*map(_types, parts)) if isinstance(parts, list) else frozenset()


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return _STRING
    return "array" if isinstance(value, list) else "object"
