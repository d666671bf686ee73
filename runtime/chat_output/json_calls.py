"""Tool calls as JSON objects: {"name": ..., "arguments": {...}}, alone or in a list."""

from __future__ import annotations

from hybridge.runtime.chat_output.call_writer import CallWriter
from hybridge.runtime.chat_output.json_text import captured_text, captured_value, json_value, loaded
from hybridge.runtime.chat_output.schemas import Schemas
from hybridge.runtime.chat_output.text_stream import Parsing, TextStream

# Hermes and Nemotron write "arguments", Llama 3 "parameters".
_ARGUMENTS = ("arguments", "parameters")


def json_object_call(stream: TextStream, calls: CallWriter, schemas: Schemas) -> Parsing[bool]:
    """Read one object; returns whether it was a complete call."""
    yield from stream.skip_space()
    complete = (yield from stream.literal("{")) and (yield from _members(stream, calls))
    calls.end(complete)
    return complete


def json_list_calls(stream: TextStream, calls: CallWriter, schemas: Schemas) -> Parsing[bool]:
    """Read a list of objects; returns whether all of them were complete calls."""
    yield from stream.skip_space()
    if not (yield from stream.literal("[")):
        return False
    while True:
        if not (yield from json_object_call(stream, calls, schemas)):
            return False
        yield from stream.skip_space()
        if not (yield from stream.literal(",")):
            return (yield from stream.literal("]"))


def _members(stream: TextStream, calls: CallWriter) -> Parsing[bool]:
    """The members of an object, after its opening brace; False when it is malformed or names no function."""
    early = ""  # arguments that precede the name
    while True:
        yield from stream.skip_space()
        key = yield from captured_value(stream)
        yield from stream.skip_space()
        if not isinstance(key, str) or not (yield from stream.literal(":")):
            return False
        if key == "name" and not calls.is_open:
            name = yield from captured_value(stream)
            if not isinstance(name, str) or not name:
                return False
            calls.start(name)
            calls.arguments(early)
        elif key in _ARGUMENTS:
            text = yield from _arguments(stream, calls)
            if text is None:
                return False
            early = text
        elif (yield from captured_text(stream)) is None:
            return False
        yield from stream.skip_space()
        if not (yield from stream.literal(",")):
            return (yield from stream.literal("}")) and calls.is_open


def _arguments(stream: TextStream, calls: CallWriter) -> Parsing[str | None]:
    """Pass on the arguments of an open call, or return them if the call has no name yet; None when malformed."""
    yield from stream.skip_space()
    first = yield from stream.peek()
    if first == "{" and calls.is_open:
        return "" if (yield from json_value(stream, calls.arguments)) else None
    text = yield from captured_text(stream)
    if first == '"':
        # Some models write the object as a string.
        text = None if text is None else loaded(text)
    elif text == "null":
        text = "{}"
    if text is None or not isinstance(loaded(text), dict):
        return None
    if calls.is_open:
        calls.arguments(text)
    return text
