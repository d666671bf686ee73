"""Tool calls with tags for function and parameters, whose values are written without quotes.

<function=NAME>
<parameter=KEY>
VALUE
</parameter>
</function>
"""

from __future__ import annotations

import json

from hybridge.runtime.chat_output.call_writer import CallWriter
from hybridge.runtime.chat_output.schemas import Schemas, is_string, json_from_text, parameter_types
from hybridge.runtime.chat_output.text_stream import Parsing, TextStream
from hybridge.runtime.chat_output.trimmed_text import TrimmedText

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


def xml_call(stream: TextStream, calls: CallWriter, schemas: Schemas) -> Parsing[bool]:
    """Read one call; returns whether it was complete."""
    yield from stream.skip_space()
    if not (yield from stream.literal(_FUNCTION)):
        return False
    name = yield from _name(stream)
    if not name:
        return False
    calls.start(name)
    complete = yield from _parameters(stream, calls, schemas, name)
    calls.end(complete)
    return complete


def _name(stream: TextStream) -> Parsing[str]:
    """The rest of a tag; empty when the tag has no end in its line."""
    parts: list[str] = []
    marker = yield from stream.until((">", "\n"), parts.append)
    return "".join(parts).strip() if marker == ">" else ""


def _parameters(stream: TextStream, calls: CallWriter, schemas: Schemas, function: str) -> Parsing[bool]:
    """All parameters and the function's end, as the JSON object of the arguments."""
    known: set[str] = set()
    while True:
        yield from stream.skip_space()
        if (yield from stream.literal(_FUNCTION_END)):
            calls.arguments("}" if known else "")
            return True
        if not (yield from stream.literal(_PARAMETER)):
            return False
        key = yield from _name(stream)
        if not key or key in known:
            return False
        calls.arguments(("," if known else "{") + json.dumps(key, ensure_ascii=False) + ":")
        known.add(key)
        types = parameter_types(schemas, function, key)
        if not (yield from _value(stream, calls, types)):
            return False


def _value(stream: TextStream, calls: CallWriter, types: frozenset[str]) -> Parsing[bool]:
    """One value, without the line breaks next to its tags; strings are passed on as they arrive."""
    if not is_string(types):
        parts: list[str] = []
        marker = yield from stream.until((_PARAMETER_END,), parts.append)
        if marker:
            calls.arguments(json_from_text("".join(parts).strip("\n"), types))
        return bool(marker)
    calls.arguments('"')
    value = TrimmedText(lambda text: calls.arguments(json.dumps(text, ensure_ascii=False)[1:-1]), limit=1)
    value.begin()
    marker = yield from stream.until((_PARAMETER_END,), value.push)
    value.end()
    calls.arguments('"')
    return bool(marker)
