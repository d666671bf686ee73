"""JSON values within a text, read up to their end and emitted as they arrive."""

from __future__ import annotations

import json
from typing import Any

from hybridge.runtime.chat_output.text_stream import Emit, Parsing, TextStream


def json_value(stream: TextStream, emit: Emit) -> Parsing[bool]:
    """Read one JSON value and emit its text as it arrives; returns whether the value has an end.

    Only strings and brackets are parsed: the rest is emitted unchecked.
    """
    yield from stream.skip_space()
    depth, quoted, escaped, begun = 0, False, False, False
    while True:
        chunk = stream.available
        for at, char in enumerate(chunk):
            if quoted:
                quoted = escaped or char != '"'
                escaped = char == "\\" and not escaped
                if not quoted and depth == 0:
                    emit(stream.take(at + 1))
                    return True
            elif depth == 0 and (char in ",:]}" or char.isspace()):
                emit(stream.take(at))
                return begun
            elif char == '"':
                quoted = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
                if depth == 0:
                    emit(stream.take(at + 1))
                    return True
            begun = True
        emit(stream.take(len(chunk)))
        if stream.ended:
            return begun and depth == 0 and not quoted
        yield


def captured_text(stream: TextStream) -> Parsing[str | None]:
    """The text of one JSON value, None when it has no end."""
    parts: list[str] = []
    complete = yield from json_value(stream, parts.append)
    return "".join(parts) if complete else None


def captured_value(stream: TextStream) -> Parsing[Any]:
    """One JSON value, None also when it is not valid JSON."""
    text = yield from captured_text(stream)
    return None if text is None else loaded(text)


def loaded(text: str) -> Any:
    """The value of a JSON text, None when it is not valid JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
