"""Errors of the command-line parser in the words of all others: expected, found, and the help that explains it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# The parser validates with pydantic, whose error types these are.
_EXPECTED = {
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_parsing": "a number",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}


def usage_sentence(error: BaseException) -> str:
    """The sentence for a usage error (an exception with ``format_message``) of the parser or of a command."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "hybridge"
    return f"{_message(error).strip().rstrip('.')}: see {command} --help"


def _message(error: Any) -> str:
    if type(error).__name__ != "BadParameter":
        return str(error.format_message())
    where = error.param_hint or max(getattr(error.param, "opts", ()), key=len, default="")
    return f"{where}: {_bad_value(error)}" if where else str(error.message)


def _bad_value(error: Any) -> str:
    """What was expected and found instead of the parser's own sentence, where its details are known."""
    details = _details(error.__cause__)
    expected = _EXPECTED.get(details.get("type", ""))
    if expected is not None:
        return f"expected {expected.format(**details.get('ctx', {}))}, found {details.get('input')!r}"
    message = str(error.message).removeprefix("Value error, ")
    choice = re.fullmatch(r"('.*') is not one of ('.*?')\.?", message)
    if choice is None:
        return message
    return f"expected one of {choice[2].replace(chr(39), '')}, found {choice[1]}"


def _details(cause: Any) -> Mapping[str, Any]:
    errors = cause.errors() if hasattr(cause, "errors") else ()
    return errors[0] if errors else {}
