"""Arguments of public calls: their names, and paths."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

from hybridge.artifact.errors import SettingError
from hybridge.artifact.settings import bad_value

T = TypeVar("T", bound=Callable[..., Any])
# What another call takes.
_ELSEWHERE = {"speculative_tokens": "pass it to build_engine, or SpeculationSettings to LLM"}


def known_arguments(called: T) -> T:
    """``called``, a function or a class, with a SettingError for an argument of an unknown name."""
    if isinstance(called, type):
        called.__init__ = _checked(called.__init__, called.__name__)  # type: ignore[misc]
        return called
    return _checked(called, called.__name__)


def checked_path(name: str, value: object) -> Path:
    """``value`` as a path; SettingError, which calls it ``name``, for anything else."""
    found = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not found or not isinstance(found, str) or "\0" in found:
        raise bad_value(name, "a path", value)
    try:
        os.lstat(found)
    except OSError as error:  # others say what is wrong where the file is opened
        if error.errno == errno.ENAMETOOLONG:
            raise bad_value(name, "a shorter path", found) from error
    return Path(found)


def _checked(function: T, name: str) -> T:
    parameters = tuple(signature(function).parameters)

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        for argument in named:
            if argument not in parameters:
                hint = _hint(argument, parameters)
                raise SettingError(f"{argument}: expected an argument of {name}, found none of this name: {hint}")
        return function(*args, **named)

    return call  # type: ignore[return-value]


def _hint(argument: str, parameters: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(argument, parameters, 1)
    return f"use {close[0]}" if close else _ELSEWHERE.get(argument, "leave it out")
