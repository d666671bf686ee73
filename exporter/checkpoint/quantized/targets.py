"""Matches a checkpoint's modules with the targets and exceptions of a quantisation config."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.json_fields import Fields

_REGEX = "re:"
# Longer expressions and nested repetitions may take practically forever on a long name.
_LONGEST_REGEX, _MOST_REPETITIONS = 400, 4
# The target that stands for the weight matrix of every product.
LINEAR = "Linear"
_LAYER = re.compile(r"(?:^|\.)layers\.[0-9]+(?:\.|$)")


def names_of(fields: Fields, key: str) -> tuple[str, ...]:
    """The names that a config lists under ``key``; none where it is absent or null."""
    return () if fields.raw(key, None) is None else tuple(fields.strings(key))


def matches(module: str, targets: Iterable[str]) -> bool:
    """Whether one of ``targets`` names ``module``: its name, "re:" and a regular expression, or a name with "*"."""
    return any(_matches(module, target) for target in targets)


def _matches(module: str, target: str) -> bool:
    if target.startswith(_REGEX):
        return _regex(target.removeprefix(_REGEX)).match(module) is not None
    return target == module or ("*" in target and fnmatchcase(module, target))


def _regex(pattern: str) -> re.Pattern[str]:
    repeats = len(re.findall(r"(?<!\\)[*+{]", pattern))
    if len(pattern) > _LONGEST_REGEX or repeats > _MOST_REPETITIONS or re.search(r"\)[*+{]|\\[0-9]", pattern):
        raise UnsupportedError(
            f"quantization_config: expected regular expressions with at most {_MOST_REPETITIONS} repetitions and none "
            f"of a group, found {pattern[:100]!r}: name the modules"
        )
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise CheckpointError(
            f"quantization_config: expected a regular expression, found {pattern!r}: {error}"
        ) from error


def check_names(names: Iterable[str], modules: Collection[str], field: str) -> None:
    """CheckpointError for a name of a module in a layer that the checkpoint does not have."""
    for name in names:
        if not name.startswith(_REGEX) and "*" not in name and _LAYER.search(name) and name not in modules:
            raise CheckpointError(
                f"quantization_config: {field}: expected modules of the checkpoint, found {name!r}, which it does not "
                "have: its config is that of another checkpoint"
            )
