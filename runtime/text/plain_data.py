"""Messages, tools and variables of a template as plain JSON data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridge.artifact.errors import RequestError
from hybridge.artifact.limits import CONVERSATION_BYTES, JSON_DEPTH, MIB

# What a value takes beside the characters of a text: its place in a list.
_VALUE_BYTES = 8


class PlainData:
    """Copies from plain JSON types of what one rendering reads, together at most CONVERSATION_BYTES."""

    def __init__(self) -> None:
        self._left = CONVERSATION_BYTES

    def copy(self, value: Any, depth: int = 0) -> Any:
        """``value`` rebuilt; RequestError when it holds other types, is too large or too deep."""
        if depth > JSON_DEPTH:
            raise RequestError(f"messages: expected at most {JSON_DEPTH} levels of lists and objects, found more")
        self._left -= _VALUE_BYTES + (len(value) if isinstance(value, str) else 0)
        if self._left < 0:
            raise RequestError(
                f"messages: expected at most {CONVERSATION_BYTES // MIB} MiB with tools and variables, found more: "
                "shorten the conversation"
            )
        if isinstance(value, Mapping):
            return {self.copy(key, depth + 1): self.copy(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.copy(item, depth + 1) for item in value]
        if value is None or isinstance(value, bool):
            return value
        for kind in (str, int, float):
            if isinstance(value, kind):
                return value if type(value) is kind else kind(value)
        raise RequestError(f"messages: expected text, numbers, lists and objects, found {type(value).__name__}")
