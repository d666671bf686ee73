"""Settings of the prefix cache that make no sense are refused at once, by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings

WRONG: list[tuple[str, Any]] = [
    *((name, value) for name in ("kind", "policy", "states", "host_states") for value in ("none", None, 3)),
    *((name, value) for name in ("grid", "decode_interval", "path_states") for value in (0, -1, 2.5, "7", True)),
    *((name, None) for name in ("spread", "least_gain", "window", "host_bytes")),
    *((name, -1) for name in ("cached_states", "spread", "least_gain", "window", "host_bytes")),
    *(("alpha", value) for value in (-1, math.nan, math.inf, "much", True)),
    *((name, value) for name in ("branch_points", "prompt_end", "chunks") for value in (None, 1, "no")),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_what_makes_no_sense_is_refused(name: str, value: Any) -> None:
    with pytest.raises(EngineError, match=f"^{name}: expected .*, found {value!r}$"):
        PrefixCacheSettings(**{name: value})


@pytest.mark.parametrize(
    "given",
    [
        {"grid": None, "decode_interval": None, "path_states": None, "cached_states": None, "alpha": None},
        {"grid": 1, "decode_interval": 1, "path_states": 1, "cached_states": 0, "alpha": 0},
        {"alpha": 0.5, "spread": 0, "host_bytes": 0, "least_gain": 1, "window": 1},
    ],
    ids=str,
)
def test_what_makes_sense_is_kept(given: dict[str, Any]) -> None:
    settings = PrefixCacheSettings(**given)
    assert {name: getattr(settings, name) for name in given} == given
    assert PrefixCacheSettings.of(settings) is settings and PrefixCacheSettings.of("off").kind == "off"
