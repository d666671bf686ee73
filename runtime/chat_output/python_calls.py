"""Tool calls as a list of Python calls: [f(a="x", b=1), g()]."""

from __future__ import annotations

import ast
import json
from typing import Any

from hybridge.runtime.chat_output.call_writer import CallWriter
from hybridge.runtime.chat_output.json_calls import json_list_calls
from hybridge.runtime.chat_output.schemas import Schemas
from hybridge.runtime.chat_output.text_stream import Parsing, TextStream

# JSON's names of constants, which models mix with Python's.
_CONSTANTS = {"true": True, "false": False, "null": None}


def python_list_calls(stream: TextStream, calls: CallWriter, schemas: Schemas) -> Parsing[bool]:
    """Read a list of calls, or of JSON objects; returns whether all of them were complete calls."""
    yield from stream.skip_space()
    rest = stream.available
    while rest.strip() in ("", "[") and not stream.ended:
        yield
        rest = stream.available
    if rest.lstrip().removeprefix("[").lstrip().startswith("{"):
        return (yield from json_list_calls(stream, calls, schemas))
    if not (yield from stream.literal("[")):
        return False
    while True:
        text = yield from _call_text(stream)
        if text is None or not _write(text, calls):
            return False
        yield from stream.skip_space()
        if not (yield from stream.literal(",")):
            return (yield from stream.literal("]"))


def _call_text(stream: TextStream) -> Parsing[str | None]:
    """Read up to the bracket that closes the call; None at the end of the text."""
    text, depth, quote, escaped = "", 0, "", False
    while char := (yield from stream.peek()):
        text += stream.take(1)
        if quote:
            if not escaped and char == quote:
                quote = ""
            escaped = char == "\\" and not escaped
        elif char in "\"'":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth <= 0:
                return text if depth == 0 else None
    return None


def _write(text: str, calls: CallWriter) -> bool:
    """Write the call in ``text``; False unless it is a call by name, with keyword arguments that are literals."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return False
        name = ast.unparse(call.func)
        arguments = {keyword.arg: _value(keyword.value) for keyword in call.keywords}
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False
    if None in arguments or not name.replace(".", "_").isidentifier():
        return False
    calls.start(name)
    calls.arguments(written)
    calls.end()
    return True


def _value(node: ast.expr) -> Any:
    """The value of a literal; ValueError for any other expression."""
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        if None in node.keys:
            raise ValueError("a dict is unpacked")
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    value = ast.literal_eval(node)
    if isinstance(value, str | int | float | bool | None):
        return value
    raise ValueError(f"{type(value).__name__} is not a JSON value")
