"""Checks of single sampling parameters: each returns the value in its normal form or raises RequestError."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from hybridge.artifact.errors import RequestError
from hybridge.artifact.settings import bad_value, checked_bool, checked_int


def failure(name: str, expected: str, found: object) -> RequestError:
    """The error for a parameter of a wrong value."""
    return bad_value(name, expected, found, RequestError)


def number(name: str, value: Any, expected: str, accept: Callable[[float], bool]) -> float:
    """A finite number that ``accept`` takes."""
    try:
        found = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found) or not accept(found):
        raise failure(name, f"a number {expected}", value)
    return found


def integer(name: str, value: Any, minimum: int = 1, maximum: int | None = None) -> int:
    """An integer from ``minimum`` to ``maximum``."""
    return checked_int(name, value, minimum, maximum, RequestError)


def boolean(name: str, value: Any) -> bool:
    """True or False."""
    return checked_bool(name, value, RequestError)


def texts(name: str, value: Any, most: int, most_characters: int) -> tuple[str, ...]:
    """At most ``most`` texts of together at most ``most_characters``; a single text is a list of one."""
    found = (value,) if isinstance(value, str) else () if value is None else _items(value, most)
    if found is None or not all(isinstance(text, str) and text for text in found):
        raise failure(name, "texts that are not empty", value)
    _check_count(name, "texts", len(found), most)
    _check_count(name, "characters", sum(map(len, found)), most_characters)
    return found


def token_ids(name: str, value: Any, most: int) -> tuple[int, ...]:
    """At most ``most`` token ids; a single id is a list of one."""
    found = () if value is None else (value,) if isinstance(value, str) else _items(value, most)
    given = (value,) if found is None else found
    _check_count(name, "token ids", len(given), most)
    return tuple(integer(name, token, 0) for token in given)


def biases(name: str, value: Any, most: int, bound: float) -> tuple[tuple[int, float], ...]:
    """Pairs of token id and bias from -bound to bound, each token once, from a mapping or pairs.

    A token id may be a text of digits, as JSON has it.
    """
    pairs = value.items() if isinstance(value, Mapping) else () if value is None else _items(value, most)
    if pairs is None or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise failure(name, "a mapping from token ids to numbers", value)
    _check_count(name, "token ids", len(pairs), most)
    found = {}
    for token, bias in pairs:
        id_ = int(token) if isinstance(token, str) and token.isdecimal() and len(token) < 20 else token
        found[integer(name, id_, 0)] = number(name, bias, f"from {-bound:g} to {bound:g}", lambda b: abs(b) <= bound)
    return tuple(found.items())


def callables(name: str, value: Any, most: int) -> tuple[Callable[..., Any], ...]:
    """At most ``most`` callables; a single one is a list of one."""
    found = () if value is None else (value,) if callable(value) else _items(value, most)
    if found is None or not all(callable(item) for item in found):
        raise failure(name, "callables", value)
    _check_count(name, "callables", len(found), most)
    return found


def _items(value: Any, most: int) -> tuple[Any, ...] | None:
    """The first ``most`` items and one more, however many there are; None: not a list."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        return None
    return tuple(islice(value, most + 1))


def _check_count(name: str, what: str, found: int, most: int) -> None:
    if found > most:
        raise RequestError(f"{name}: expected at most {most} {what}, found more: pass fewer")
