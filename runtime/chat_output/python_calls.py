"""Tool calls as a list of Python calls: [f(a="x", b=1), g()]."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from hybridge.runtime.chat_output.call_writer import CallWriter
from hybridge.runtime.chat_output.json_calls import json_list_calls
from hybridge.runtime.chat_output.schemas import Schemas
from hybridge.runtime.chat_output.text_stream import Parsing, TextStream

_NAME = re.compile(r"[^\W\d][\w.-]*")
_KEY = re.compile(r"\s*([^\s=(),\"'*]+)\s*=")
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
    text, nesting = "", _Nesting()
    while char := (yield from stream.peek()):
        text += stream.take(1)
        nesting.add(char)
        if char in ")]}" and nesting.depth <= 0 and not nesting.quote:
            return text if nesting.depth == 0 else None
    return None


class _Nesting:
    """Where a position in Python's text is. depth: of brackets. quote: that of an open string."""

    def __init__(self) -> None:
        self.depth, self.quote, self._escaped = 0, "", False

    def add(self, char: str) -> None:
        """The next character."""
        if self.quote:
            if not self._escaped and char == self.quote:
                self.quote = ""
            self._escaped = char == "\\" and not self._escaped
        elif char in "\"'":
            self.quote = char
        elif char in "([{":
            self.depth += 1
        elif char in ")]}":
            self.depth -= 1


def _write(text: str, calls: CallWriter) -> bool:
    """Write the call in ``text``; False unless it is a call by name, with keyword arguments that are literals."""
    name, _, rest = text.partition("(")
    try:
        written = json.dumps(_arguments(rest[:-1]), ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False
    if not _NAME.fullmatch(name.strip()):
        return False
    calls.start(name.strip())
    calls.arguments(written)
    calls.end()
    return True


def _arguments(text: str) -> dict[str, Any]:
    """The keyword arguments in ``text``; SyntaxError or ValueError for others. Keys may be reserved words."""
    found: dict[str, Any] = {}
    text, at = text.rstrip(), 0
    while at < len(text):
        key = _KEY.match(text, at)
        if key is None or key[1] in found:
            raise ValueError("no keyword argument")
        end, nesting = key.end(), _Nesting()
        while end < len(text) and (text[end] != "," or nesting.depth or nesting.quote):
            nesting.add(text[end])
            end += 1
        found[key[1]] = _value(ast.parse(text[key.end() : end].strip(), mode="eval").body)
        at = end + 1
    return found


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
