"""How much of a sample tests run: a part on push, all in `make test-all`, more examples in `make fuzz`."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from typing import Any

import pytest

# Set by the Makefile: "push" (default), "all" or "fuzz".
EFFORT = os.environ.get("HYBRIDGE_TEST_EFFORT", "push")
_SCALE = {"push": 0.25, "all": 1.0, "fuzz": float(os.environ.get("HYBRIDGE_FUZZ_SCALE", "100"))}

if EFFORT not in _SCALE:
    raise ValueError(f"HYBRIDGE_TEST_EFFORT: expected one of {', '.join(_SCALE)}, found {EFFORT!r}")


def examples(full: int) -> int:
    """The number of examples to run for a property whose full check takes ``full`` examples; at least 2."""
    return max(2, round(full * _SCALE[EFFORT]))


def sample(values: Iterable[Any], on_push: Container[Any]) -> list[Any]:
    """``values`` to parametrize a test with, tuples for several arguments: those of ``on_push`` always, the others in
    `make test-all` alone."""
    return [
        value
        if value in on_push
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in values
    ]
