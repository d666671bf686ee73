"""Errors of the command-line parser in the words of all others: expected, found, and the help that explains it."""

from __future__ import annotations

from typing import Any

# Of options that another command has now.
_MOVED = {
    "--speculative-tokens": "--speculative-tokens: expected no draft tokens in an export, as they are chosen for any "
    "artifact of layout paged when it is opened: use hybridge run --draft-tokens N, SpeculationSettings(tokens=N), or "
    "hybridge build-engine --speculative-tokens N",
}


def usage_sentence(error: BaseException) -> str:
    """The sentence for a usage error (an exception with ``format_message``) of the parser or of a command."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "hybridge"
    return f"{_message(error).strip().rstrip('.')}: see {command} --help"


def _message(error: Any) -> str:
    if type(error).__name__ == "NoSuchOption" and error.option_name in _MOVED:
        return _MOVED[error.option_name]
    if type(error).__name__ != "BadParameter":
        return str(error.format_message())
    where = error.param_hint or max(getattr(error.param, "opts", ()), key=len, default="")
    return f"{where}: {error.message}" if where else str(error.message)
