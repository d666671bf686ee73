"""Numbers that an export is asked for: those that a step's int32 inputs hold."""

from __future__ import annotations

from typing import Any

import pytest

from hybridge.artifact.errors import SettingError
from hybridge.exporter.options import ExportOptions


@pytest.mark.parametrize("option", ["max_batch_size", "max_seq_len"])
@pytest.mark.parametrize("value", [0, -1, 2**31, 10**14, 1.5, "8"])
def test_limits_that_no_step_can_have(option: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"^{option}: expected an integer from 1 to 2147483647, found {value!r}$"):
        ExportOptions(**{option: value})


@pytest.mark.parametrize("value", [1, 2**31 - 1])
def test_the_smallest_and_the_largest_limits(value: int) -> None:
    assert ExportOptions(max_batch_size=value, max_seq_len=value).max_seq_len == value
