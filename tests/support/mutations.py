"""Generated damage to a valid document: values of other kinds and sizes in any place, or bytes of other values."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

# What a reader may not expect: other kinds, borders of integers, names that paths and terminals take for something.
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, 1e308),
    *(float("inf"), float("nan"), "", "a", "..", "../x", "/etc/passwd", "a\0b", "x" * 300, "\x1b[2J", "\ud800"),
    *("float32", "inf", "1", [], {}, [[]], [None], [1, -1], [2**62, 2**62, 2**62], {"a": 1}, [{}], [[[[1]]]]),
    {"__float__": "Infinity"},
)
VALUES = st.sampled_from(ODD_VALUES)
# (where, what happens there, the value)
CHANGES = st.lists(
    st.tuples(st.lists(st.integers(0, 30), max_size=7), st.sampled_from(["set", "remove", "add", "double"]), VALUES),
    max_size=3,
)
SPLICES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 4), st.binary(max_size=6)), max_size=2)


def changed(document: Any, changes: list[tuple[list[int], str, Any]]) -> Any:
    """A copy of ``document`` with each change made: in the child of a child ... that the numbers choose."""
    root = {"root": copy.deepcopy(document)}
    for steps, action, value in changes:
        parent: Any = root
        key: Any = "root"
        for step in steps:
            inner = parent[key]
            if not isinstance(inner, (dict, list)) or not inner:
                break
            keys = list(inner) if isinstance(inner, dict) else range(len(inner))
            parent, key = inner, keys[step % len(keys)]
        _change(parent, key, action, value)
    return root.get("root")


def _change(parent: Any, key: Any, action: str, value: Any) -> None:
    if action == "set":
        parent[key] = copy.deepcopy(value)
    elif action == "remove" and "root" not in parent:
        del parent[key]
    elif action == "double" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[key]))
    elif isinstance(parent[key], dict):
        parent[key][value if isinstance(value, str) else "added"] = copy.deepcopy(value)
    elif isinstance(parent[key], list):
        parent[key].append(copy.deepcopy(value))


def changed_json(document: Any, changes: list[tuple[list[int], str, Any]]) -> bytes:
    """The same as JSON text; numbers that are not finite as Python spells them."""
    return json.dumps(changed(document, changes)).encode("utf-8", "replace")


def spliced(raw: bytes, splices: list[tuple[int, int, bytes]]) -> bytes:
    """``raw`` with some bytes replaced by others, at places and of lengths that the numbers choose."""
    for place, length, value in splices:
        place %= len(raw) + 1
        raw = raw[:place] + value + raw[place + length :]
    return raw
