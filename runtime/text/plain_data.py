"""Messages, tools and variables of a template as plain JSON data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridge.artifact.errors import RequestError
from hybridge.artifact.limits import JSON_DEPTH


def plain_data(value: Any, depth: int = 0) -> Any:
    """``value`` rebuilt from plain JSON types; RequestError when it holds others or more than JSON_DEPTH levels."""
    if depth > JSON_DEPTH:
        raise RequestError(f"messages: expected at most {JSON_DEPTH} levels of lists and objects, found more")
    if isinstance(value, Mapping):
        return {plain_data(key, depth + 1): plain_data(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item, depth + 1) for item in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    raise RequestError(f"messages: expected text, numbers, lists and objects, found {type(value).__name__}")
