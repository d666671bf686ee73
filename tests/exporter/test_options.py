"""Numbers among an export's options fit into a step's int32 inputs."""

from __future__ import annotations

from typing import Any

import pytest

from hybridge.artifact.errors import SettingError
from hybridge.artifact.limits import POSITIONS, ROWS
from hybridge.exporter.options import ExportOptions


@pytest.mark.parametrize(("option", "most"), [("max_batch_size", ROWS), ("max_seq_len", POSITIONS)])
@pytest.mark.parametrize("value", [0, -1, 2**31, 10**14, 1.5, "8"])
def test_limits_that_no_step_can_have(option: str, most: int, value: Any) -> None:
    with pytest.raises(SettingError, match=f"^{option}: expected an integer from 1 to {most}, found {value!r}$"):
        ExportOptions(**{option: value})


@pytest.mark.parametrize(("rows", "positions"), [(1, 1), (ROWS, POSITIONS)])
def test_the_smallest_and_the_largest_limits(rows: int, positions: int) -> None:
    assert ExportOptions(max_batch_size=rows, max_seq_len=positions).max_seq_len == positions
