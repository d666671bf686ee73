"""Whatever stands in a preset's file: a preset, or a typed error."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import EngineError, UnsupportedError
from hybridge.artifact.resources import data_folder
from hybridge.trt_plugins.build.presets import read_preset
from tests.support.effort import examples
from tests.support.mutations import SPLICES, spliced

TEXT = (data_folder("configs") / "rtx-ada.toml").read_bytes()
LINES = TEXT.decode().splitlines()
VALUES = [
    "0", "-1", "1e400", "nan", "[]", "{}", '""', "1979-05-27", "07:32:00", "true", "0x7fffffffffffffffffff",
    "[[1]]", '["8.6"]', '["9"]', '["x"]', '[""]', "[8.6]", '["nan"]', '["1e9"]', '["-8.6"]', "1" * 5000,
]  # fmt: skip
EDITS = st.lists(st.tuples(st.integers(0, len(LINES) - 1), st.sampled_from(VALUES)), max_size=3)


@pytest.mark.fuzz
@settings(max_examples=examples(200), deadline=None)
@given(edits=EDITS, splices=SPLICES, depth=st.sampled_from([0, 0, 0, 0, 0, 0, 0, 0, 100, 20_000]))
def test_preset(
    tmp_path_factory: pytest.TempPathFactory,
    edits: list[tuple[int, str]],
    splices: list[tuple[int, int, bytes]],
    depth: int,
) -> None:
    lines = list(LINES)
    for index, value in edits:
        lines[index] = f"{lines[index].partition('=')[0]}= {value}"
    raw = spliced("\n".join(lines).encode(), splices) + (b"\nx = " + b"[" * depth if depth else b"")
    path: Path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    path.write_bytes(raw)
    with contextlib.suppress(EngineError, UnsupportedError):
        assert read_preset(str(path)).max_batch_size >= 1
