"""Types of tool parameters, for formats that write values without quotes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hybridge.runtime.chat_output.json_text import loaded
from hybridge.runtime.chat_output.parameter_schemas import resolved

# Name of a function -> JSON schema of its arguments.
Schemas = Mapping[str, Mapping[str, Any]]
_STRING = "string"


def parameter_types(schemas: Schemas, function: str, parameter: str) -> frozenset[str]:
    """The JSON types that the parameter accepts; empty where the schema does not say."""
    root = schemas.get(function, {})
    top = resolved(root, root)
    properties = top.get("properties") if isinstance(top, Mapping) else None
    schema = properties.get(parameter) if isinstance(properties, Mapping) else None
    return _types(schema, root)


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


def _types(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """The types of ``schema``, which may refer to other parts of ``root``, and to itself."""
    found: set[str] = set()
    known: set[int] = set()
    waiting = [schema]
    while waiting:
        each = resolved(waiting.pop(), root)
        if not isinstance(each, Mapping) or id(each) in known:
            continue
        known.add(id(each))
        named = each.get("type")
        parts = each.get("anyOf") or each.get("oneOf") or each.get("allOf")
        if isinstance(named, str):
            found.add(named)
        elif isinstance(named, list):
            found.update(name for name in named if isinstance(name, str))
        elif isinstance(each.get("enum"), list):
            found.update(map(_json_type, each["enum"]))
        elif "const" in each:
            found.add(_json_type(each["const"]))
        elif isinstance(parts, list):
            waiting += parts
    return frozenset(found)


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
