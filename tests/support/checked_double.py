"""Doubles that accept only what the real class accepts: attributes, argument names and counts, simple types.

``unittest.mock.create_autospec`` knows no signature of a compiled class. pybind11 writes its signatures into the
docstrings, and Cython keeps them for ``inspect``: a call with a wrong name or number of arguments fails here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_OVERLOAD = re.compile(r"^(?:\d+\. )?(\w+)\((.*)\) -> (.+)$")


class CheckedDouble:
    """A stand-in for an instance of ``real``: attributes that ``real`` lacks do not exist, calls must fit its
    signature.

    What happens is up to ``behaviour``, an object with the attributes that are used.
    """

    def __init__(self, real: type, behaviour: Any) -> None:
        object.__setattr__(self, "real", real)
        object.__setattr__(self, "behaviour", behaviour)

    def __getattr__(self, name: str) -> Any:
        real = inspect.getattr_static(self.real, name, None)
        # Optional methods are looked up with getattr: the real object would raise AttributeError, too.
        if real is None:
            raise AttributeError(f"{self.real.__name__} has no attribute {name}")
        value = getattr(self.behaviour, name, NotImplemented)
        assert value is not NotImplemented, f"the stand-in of {self.real.__name__} lacks {name}"
        if callable(value) and not isinstance(real, property):
            return checked_call(getattr(self.real, name), value, bound=True)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        real = inspect.getattr_static(self.real, name, None)
        assert isinstance(real, property) and real.fset, f"{self.real.__name__} has no settable property {name}"
        setattr(self.behaviour, name, value)


def checked_call(real: Callable[..., Any], call: Callable[..., Any], bound: bool = False) -> Callable[..., Any]:
    """``call``, which fails where ``real`` would refuse the arguments. bound: ``real`` has a self that calls lack."""
    overloads = _signatures(real, bound)

    def checked(*arguments: Any, **named: Any) -> Any:
        problems = [problem for overload in overloads if (problem := _problem(overload, arguments, named))]
        assert len(problems) < len(overloads), f"{getattr(real, '__name__', real)}: {'; '.join(problems)}"
        return call(*arguments, **named)

    return checked


def _signatures(real: Callable[..., Any], bound: bool) -> list[inspect.Signature]:
    name = getattr(real, "__name__", "")
    lines = (_OVERLOAD.match(line.strip()) for line in (real.__doc__ or "").splitlines())
    found = [match[2] for match in lines if match and match[1] == name and match[2] != "*args, **kwargs"]
    if found and "self:" in found[0]:
        return [_parsed(text) for text in found]
    signature = inspect.signature(real)
    parameters = list(signature.parameters.values())
    return [signature.replace(parameters=parameters[1:] if bound else parameters)]


def _parsed(text: str) -> inspect.Signature:
    parameters = []
    for part in _split(text):
        declaration, _, default = part.partition(" = ")
        name, _, annotation = declaration.partition(": ")
        if name.strip() != "self":
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            given = default if default else inspect.Parameter.empty
            parameters.append(inspect.Parameter(name.strip(), kind, default=given, annotation=annotation.strip()))
    return inspect.Signature(parameters)


def _split(text: str) -> list[str]:
    """The arguments of a signature; commas inside brackets do not separate."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += letter in "[(<"
        depth -= letter in "])>"
        if letter == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _problem(signature: inspect.Signature, arguments: tuple, named: dict[str, Any]) -> str | None:
    try:
        given = signature.bind(*arguments, **named)
    except TypeError as error:
        return str(error)
    for name, value in given.arguments.items():
        expected = signature.parameters[name].annotation
        if isinstance(expected, str) and not _fits(expected, value):
            return f"{name}: expected {expected}, found {type(value).__name__}"
    return None


def _fits(expected: str, value: Any) -> bool:
    if expected in ("str", "bool", "tuple", "list", "int"):
        return type(value).__name__ == expected
    if expected == "typing.SupportsInt":
        return hasattr(value, "__int__")
    if expected == "typing_extensions.Buffer":
        return memoryview(value).nbytes >= 0
    found = value.real.__name__ if isinstance(value, CheckedDouble) else type(value).__name__
    parents = [] if isinstance(value, CheckedDouble) else [kind.__name__ for kind in type(value).__mro__]
    last = re.split(r"[.:]", expected)[-1]
    return not expected.startswith("tensorrt") or last in (found, *parents)
