"""Typed reading of a JSON object: every error names the file, the field, what was expected and what was found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from hybridge.artifact.errors import ArtifactError, HybridgeError
from hybridge.artifact.limits import JSON_BYTES, JSON_DEPTH, JSON_VALUES, LARGEST_INTEGER
from hybridge.artifact.untrusted_file import read_given, read_inside

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


class _Missing(Enum):
    MISSING = 0


MISSING = _Missing.MISSING
_REMEDY = "fetch or export it again"


def load_json_object(path: Path, error: type[HybridgeError] = ArtifactError) -> dict[str, Any]:
    """The JSON object in ``path``, a file of an untrusted folder.

    Raises ``error`` if it is missing, unreadable, outside its folder, too large, too deep or not a JSON object.
    """
    return json_object(read_inside(path.parent, path.name, JSON_BYTES, error, _REMEDY), str(path), error)


def load_given_json_object(path: Path, error: type[HybridgeError]) -> dict[str, Any]:
    """The JSON object in a file that the user names; errors as for ``load_json_object``."""
    return json_object(read_given(path, JSON_BYTES, error), str(path), error, values=JSON_BYTES)


def json_object(
    raw: bytes, where: str, error: type[HybridgeError] = ArtifactError, values: int = JSON_VALUES
) -> dict[str, Any]:
    """``raw`` as a JSON object with at most ``values`` values in its lists and objects.

    Raises ``error``, whose text begins with ``where``, if it is no JSON object, too deep or has too many values.
    """
    try:
        data = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as cause:
        raise error(f"{where}: is not valid JSON ({cause}): {_REMEDY}") from cause
    if not isinstance(data, dict):
        raise error(f"{where}: expected a JSON object, found {type(data).__name__}")
    level: list[Any] = [data]
    for _ in range(JSON_DEPTH):
        values -= sum(map(len, level))
        if values < 0:
            raise error(f"{where}: expected at most {JSON_VALUES} values in lists and objects, found more: {_REMEDY}")
        level = [inner for outer in level for inner in _items(outer) if isinstance(inner, (dict, list))]
        if not level:
            return data
    raise error(f"{where}: expected at most {JSON_DEPTH} levels of lists and objects, found more: {_REMEDY}")


def _items(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value  # type: ignore[return-value]


class Fields:
    """A JSON object read field by field; remembers which keys were read, so that unknown ones can be refused.

    A key that is absent takes ``default``; without a default, an absent key is an error. A JSON null is
    accepted only where ``default`` is None.
    """

    def __init__(self, data: Mapping[str, Any], where: str, error: type[HybridgeError] = ArtifactError) -> None:
        self._data = data
        self._where = where
        self._error = error
        self._read: set[str] = set()

    @property
    def where(self) -> str:
        """The file and the object's position in it, for error messages."""
        return self._where

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def fail(self, key: str, expected: str) -> HybridgeError:
        """The error to raise for ``key``: names the file, what was expected and the value found."""
        found = repr(self._data[key]) if key in self._data else "nothing"
        if len(found) > 120:
            found = found[:117] + "..."
        return self._error(f"{self._where}: {key}: expected {expected}, found {found}")

    def raw(self, key: str, default: Any = MISSING) -> Any:
        """The value, unchecked."""
        self._read.add(key)
        if key in self._data:
            return self._data[key]
        if default is MISSING:
            raise self.fail(key, "a value")
        return default

    def integer(self, key: str, default: Any = MISSING, minimum: int | None = None, maximum: int | None = None) -> Any:
        """An integer, at least ``minimum`` and at most ``maximum``."""
        value = self._typed(key, default, _is_integer, "an integer of 64 bits")
        if value is not None and minimum is not None and value < minimum:
            raise self.fail(key, f"an integer of at least {minimum}")
        if value is not None and maximum is not None and value > maximum:
            raise self.fail(key, f"an integer of at most {maximum}")
        return value

    def number(self, key: str, default: Any = MISSING) -> Any:
        """A number that is not NaN (infinities may be written as the strings "inf" and "-inf")."""
        value = self.raw(key, default)
        if value is None and default is None:
            return None
        number = float_from_json(value)
        if number is None:
            raise self.fail(key, "a number")
        return number

    def boolean(self, key: str, default: Any = MISSING) -> Any:
        """A JSON true or false."""
        return self._typed(key, default, lambda v: isinstance(v, bool), "true or false")

    def string(self, key: str, default: Any = MISSING) -> Any:
        """A string."""
        return self._typed(key, default, lambda v: isinstance(v, str), "a string")

    def choice(self, key: str, choices: Iterable[str], default: Any = MISSING) -> Any:
        """One of the strings ``choices``."""
        known = tuple(choices)
        return self._typed(key, default, lambda v: v in known, "one of " + ", ".join(map(repr, known)))

    def enum(self, key: str, kind: type[E]) -> E:
        """The member of ``kind`` whose value is the string."""
        return kind(self.choice(key, [member.value for member in kind]))

    def array(self, key: str, default: Any = MISSING) -> Any:
        """A JSON array."""
        return self._typed(key, default, lambda v: isinstance(v, list), "a list")

    def strings(self, key: str) -> list[str]:
        """A JSON array of strings."""
        values: list[str] = self.array(key)
        if not all(isinstance(value, str) for value in values):
            raise self.fail(key, "a list of strings")
        return values

    def object(self, key: str, default: Any = MISSING) -> Any:
        """A JSON object."""
        return self._typed(key, default, lambda v: isinstance(v, dict), "an object")

    def fields(self, key: str) -> Fields:
        """A nested object as Fields."""
        return Fields(self.object(key), f"{self._where}: {key}", self._error)

    def map(self, key: str, read: Callable[[Fields], T]) -> tuple[T, ...]:
        """A list of objects, each read by ``read``."""
        items = []
        for index, item in enumerate(self.array(key)):
            if not isinstance(item, dict):
                raise self.fail(key, "a list of objects")
            items.append(read(Fields(item, f"{self._where}: {key}[{index}]", self._error)))
        return tuple(items)

    def unread(self) -> tuple[str, ...]:
        """The keys that nothing has read so far, sorted."""
        return tuple(sorted(set(self._data) - self._read))

    def refuse_unknown(self) -> None:
        """Raise when the object holds a key that nothing has read."""
        if unread := self.unread():
            raise self._error(f"{self._where}: unknown field(s) {', '.join(unread)}: written by another version?")

    def _typed(self, key: str, default: Any, accept: Callable[[Any], bool], expected: str) -> Any:
        value = self.raw(key, default)
        if value is None and default is None:
            return None
        if key in self._data and not accept(value):
            raise self.fail(key, expected)
        return value


def float_from_json(value: Any) -> float | None:
    """A number, or an infinity in one of its JSON spellings, as float; None for anything else (NaN included)."""
    if isinstance(value, Mapping) and set(value) == {"__float__"}:
        # The spelling that transformers writes for infinities: {"__float__": "Infinity"}.
        value = value["__float__"]
    if isinstance(value, str) and value.lower() in {"inf", "infinity", "-inf", "-infinity"}:
        return float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            return None
        return None if math.isnan(number) else number
    return None


def is_count(value: object) -> bool:
    """Whether ``value`` is a non-negative integer that fits into 64 bits."""
    return _is_integer(value) and value >= 0  # type: ignore[operator]


def _is_integer(value: object) -> bool:
    # An integer of 64 bits does not overflow a float and takes no more memory than its text.
    return isinstance(value, int) and not isinstance(value, bool) and -LARGEST_INTEGER <= value <= LARGEST_INTEGER
