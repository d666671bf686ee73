"""Fuzz targets of parsers: seeded random damage, tens of microseconds an input, so that millions can be run.

Hypothesis, whose inputs take one to ten milliseconds, generates where an input has a grammar (templates, tokenizers).
"""

from __future__ import annotations

import functools
import inspect
import json
import marshal
from collections.abc import Callable, Sequence
from random import Random, SystemRandom
from typing import Any

import pytest

from tests.support.effort import EFFORT, examples

# What a reader may not expect: other kinds, borders of integers, names that paths and terminals take for something.
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 2**31, 2**63, 2**64, -(2**63), -(2**64), 10**400, 0.5, -0.0, 1e308),
    *(float("inf"), float("nan"), "", "a", "ab", "..", "../x", "/etc/passwd", "a\0b", "x" * 300, "\x1b[2J", "\ud800"),
    *("float32", "inf", "1", "<s>", [], {}, [[]], [None], [1, -1], [2**62, 2**62, 2**62], {"a": 1}, [{}], [[[[1]]]]),
    {"__float__": "Infinity"},
)
_KEYS = ("content", "a", "", "é")


def fuzzed(runs: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test that gets ``random``, a RandomInput of another seed, ``examples(runs)`` times.

    The seeds follow each other: from 0 on, in `make fuzz` from any on, so that every run of it has new ones.
    """

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(check)
        def test(**fixtures: Any) -> None:
            first = SystemRandom().getrandbits(48) if EFFORT == "fuzz" else 0
            for seed in range(first, first + examples(runs)):
                try:
                    check(random=RandomInput(seed), **fixtures)
                except Exception as error:
                    raise AssertionError(f"RandomInput({seed}): {type(error).__name__}: {error}") from error

        signature = inspect.signature(check)
        left = [parameter for name, parameter in signature.parameters.items() if name != "random"]
        test.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return pytest.mark.fuzz(test)

    return decorate


class RandomInput(Random):
    """A random generator of what a damaged or hostile file may hold."""

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def odd_value(self) -> Any:
        return _copied(self.choice(ODD_VALUES))

    def json_value(self, depth: int = 3) -> Any:
        """An odd value, or a small list or object of such."""
        if depth == 0 or self.chance(0.5):
            return self.odd_value()
        values = [self.json_value(depth - 1) for _ in range(self.randrange(4))]
        return values if self.chance(0.5) else {self.choice(_KEYS): value for value in values}

    def json_object(self, keys: Sequence[str]) -> dict[str, Any]:
        """Some of ``keys`` with any values."""
        return {self.choice(keys): self.json_value() for _ in range(self.randrange(7))}

    def letters(self, most: int) -> str:
        """Up to ``most`` characters, of which many mean something to some parser."""
        return "".join(self.choices("aA0 9-=,.:/\\\"'{}[]()<>%#\n\0é▁\ud800\U0001f600", k=self.randint(0, most)))

    def damaged(self, document: Any, most: int = 3) -> Any:
        """A copy of ``document`` (JSON) with up to ``most`` values replaced, removed, added or doubled."""
        root = {"root": _copied(document)}
        for _ in range(self.randint(0, most)):
            parent: Any = root
            key: Any = "root"
            for _ in range(self.randrange(8)):
                inner = parent[key]
                if not isinstance(inner, (dict, list)) or not inner:
                    break
                parent, key = inner, self.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
            self._change(parent, key, top=parent is root)
        return root["root"]

    def _change(self, parent: Any, key: Any, top: bool) -> None:
        action, value = self.randrange(4), self.odd_value()
        if action == 0:
            parent[key] = value
        elif action == 1 and not top:
            del parent[key]
        elif action == 2 and isinstance(parent, list):
            parent.append(_copied(parent[key]))
        elif isinstance(parent[key], dict):
            parent[key][value if isinstance(value, str) else "added"] = value
        elif isinstance(parent[key], list):
            parent[key].append(value)

    def damaged_json(self, document: Any) -> bytes:
        """``damaged`` as JSON text (numbers that are not finite as Python spells them), half of the time spliced."""
        raw = json.dumps(self.damaged(document)).encode("utf-8", "replace")
        return self.spliced(raw) if self.chance(0.5) else raw

    def spliced(self, raw: bytes, most: int = 2) -> bytes:
        """``raw`` with up to ``most`` places of up to 4 bytes replaced by up to 6 others."""
        for _ in range(self.randint(0, most)):
            place = self.randint(0, len(raw))
            raw = raw[:place] + self.randbytes(self.randrange(7)) + raw[place + self.randrange(5) :]
        return raw


def _copied(document: Any) -> Any:
    return marshal.loads(marshal.dumps(document))
