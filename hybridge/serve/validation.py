"""Refusals of bodies that do not match a schema: pydantic's errors in the sentences of this project."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hybridge.serve.errors import INVALID, ApiError

# A part of the location of pydantic's errors that names one of the forms of a value, and no field.
_FORM = re.compile(r"^(str|int|float|bool)$|^[A-Z]|\[")
# Types of content that is no text, in the APIs of OpenAI and Anthropic.
_MEDIA = frozenset(("image_url", "input_image", "image", "input_audio", "input_file", "file", "document", "video_url"))
_SHOWN_CHARACTERS = 80
# By pydantic's type of the error; "{name}" is a value of its context.
_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "greater_than": "a number greater than {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "int_type": "an integer",
    "less_than_equal": "a number of at most {le}",
    "list_type": "a list",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "none_required": "null",
    "string_pattern_mismatch": "a string that matches {pattern}",
    "string_type": "a string",
    "string_unicode": "valid Unicode text",
    "too_short": "at least {min_length} items",
    "union_tag_invalid": "{expected_tags}",
    "literal_error": "{expected}",
}
# Reasons that need no value.
_REASONS = {
    "extra_forbidden": "expected no such field, found it: leave it out",
    "missing": "expected this field, found none: give it",
    "union_tag_not_found": "expected an object with a type of this API, found another value: see /openapi.json",
}


def validation_error(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The refusal of a body for one of pydantic's ``errors``: the first of those that are deepest, because there is one
    for each form that a value may have."""
    first = max(errors, key=lambda error: len(error["loc"]))
    location = [str(part) for part in first["loc"][1:] if not (isinstance(part, str) and _FORM.search(part))]
    param = ".".join(location) or None
    if first["type"] == "json_invalid":
        return ApiError(400, f"body: expected JSON, found an error at byte {first['loc'][-1]}: correct it")
    return ApiError(400, f"{param or 'body'}: {_reason(first)}", INVALID, None, param)


def _reason(error: Mapping[str, Any]) -> str:
    kind, found = error["type"], error["input"]
    if kind in _REASONS:
        return _REASONS[kind]
    if kind not in _EXPECTED:
        return str(error["msg"]).removeprefix("Value error, ")
    context = error.get("ctx", {})
    if kind == "union_tag_invalid" and isinstance(found, Mapping):
        found = found.get("type")
    expected = {"True": "true", "False": "false"}.get(context.get("expected", ""))
    expected = expected or _EXPECTED[kind].format_map(context)
    is_media = isinstance(found, str) and found in _MEDIA
    return f"expected {expected}, found {_shown(found)}" + (": models read only text" if is_media else "")


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return repr(value[:_SHOWN_CHARACTERS])
    if isinstance(value, (int, float)):
        return str(value)[:_SHOWN_CHARACTERS]
    return f"a list of {len(value)} items" if isinstance(value, Sequence) else "an object"
