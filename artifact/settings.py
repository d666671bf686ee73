"""Settings: fields of frozen dataclasses that declare once what they take, for Python and for the command line."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from hybridge.artifact.errors import SettingError

_Error = TypeVar("_Error", bound=SettingError)
_KEY = "setting"
_LONGEST_VALUE = 200


@dataclass(frozen=True)
class Setting:
    """The declaration of one field.

    choices: the texts that it takes. least, most: bounds, both allowed. help, metavar, shown_default and group: for the
    command line's help; a switch has no metavar. flag: None for "--" and the field's name; "" keeps the setting out of
    the command line. short: a second flag of one letter.
    """

    help: str = ""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    flag: str | None = None
    short: str | None = None
    shown_default: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class SettingField:
    """A setting with its field's name, type (bool, int, float or str), default, and whether it takes several values."""

    name: str
    kind: type
    several: bool
    default: Any
    setting: Setting

    @property
    def flag(self) -> str:
        """The flag of the command line."""
        return self.setting.flag or "--" + self.name.replace("_", "-")


def setting(default: Any, help: str = "", **declared: Any) -> Any:
    """A dataclass field with a ``Setting``."""
    return field(default=default, metadata={_KEY: Setting(help, **declared)})


def settings_of(kind: type) -> Iterator[SettingField]:
    """The settings of a dataclass, in its order."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        if _KEY in each.metadata:
            found, several = _value_type(hints[each.name])
            yield SettingField(each.name, found, several, each.default, each.metadata[_KEY])


def _value_type(hint: Any) -> tuple[type, bool]:
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
    if get_origin(hint) in (tuple, Sequence):
        return str, True
    return next((kind for kind in kinds if kind in (bool, int, float)), str), False


def check_settings(settings: Any) -> None:
    """Check every setting of a dataclass object; SettingError names the one with a bad value."""
    for each in settings_of(type(settings)):
        value = getattr(settings, each.name)
        if each.several or (value is None and each.default is None):
            continue
        if each.kind is bool:
            checked_bool(each.name, value)
        elif each.kind is int:
            checked_int(each.name, value, each.setting.least, each.setting.most)
        elif each.setting.choices:
            checked_choice(each.name, value, each.setting.choices)


def checked_int(
    name: str,
    value: Any,
    least: float | None = 1,
    most: float | None = None,
    error: type[SettingError] = SettingError,
) -> int:
    """``value`` as an integer from ``least`` to ``most``; ``error`` names the parameter ``name`` otherwise."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or not (-math.inf if least is None else least) <= found <= (math.inf if most is None else most):
        raise bad_value(name, f"an integer{_range(least, most)}", value, error)
    return found


def checked_bool(name: str, value: Any, error: type[SettingError] = SettingError) -> bool:
    """``value``, which is True or False."""
    if not isinstance(value, bool):
        raise bad_value(name, "True or False", value, error)
    return value


def checked_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """``value``, which is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        known = " or ".join(choices) if len(choices) < 3 else "one of " + ", ".join(choices)
        raise bad_value(name, known, value)
    return value


def bad_value(name: str, expected: str, found: object, error: type[_Error] = SettingError) -> _Error:  # type: ignore[assignment]
    """The error for the parameter ``name``."""
    text = repr(found)
    return error(f"{name}: expected {expected}, found {text if len(text) <= _LONGEST_VALUE else text[:200] + '...'}")


def _range(least: float | None, most: float | None) -> str:
    if least is None:
        return "" if most is None else f" of at most {most}"
    return f" of at least {least}" if most is None else f" from {least} to {most}"
