"""Settings of the prefix cache that make no sense are refused at once, by name."""

from __future__ import annotations

from typing import Any

import pytest

from hybridge.artifact.errors import SettingError
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings

CHOICES = ("kind", "prompt_checkpoints", "policy", "states", "host_states")
WRONG: list[tuple[str, Any]] = [
    *(
        (name, value)
        for name in ("kind", "prompt_checkpoints", "policy", "states", "host_states")
        for value in ("some", None, 3)
    ),
    *(("decode_interval", value) for value in (0, -1, 2.5, "7", True)),
    ("host_bytes", None),
    *((name, -1) for name in ("cached_states", "host_bytes")),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_invalid_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"^{name}: expected .*, found {value!r}$"):
        PrefixCacheSettings(**{name: value})


@pytest.mark.parametrize(
    "given",
    [
        {"decode_interval": None, "cached_states": None, "prompt_checkpoints": "branches"},
        {"decode_interval": 1, "cached_states": 0, "host_bytes": 0},
    ],
    ids=str,
)
def test_valid_settings_are_accepted(given: dict[str, Any]) -> None:
    settings = PrefixCacheSettings(**given)
    assert {name: getattr(settings, name) for name in given} == given
    assert PrefixCacheSettings.of(settings) is settings and PrefixCacheSettings.of("off").kind == "off"
