"""Whatever stands in a preset's file: a preset, or a typed error."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from hybridge.artifact.errors import EngineError, SettingError
from hybridge.artifact.resources import data_folder
from hybridge.trt_plugins.build.presets import read_preset
from tests.support.fuzzing import RandomInput, fuzzed

TEXT = (data_folder("configs") / "rtx-ada.toml").read_bytes()
LINES = TEXT.decode().splitlines()
VALUES = [
    "0", "-1", "1e400", "nan", "[]", "{}", '""', "1979-05-27", "07:32:00", "true", "0x7fffffffffffffffffff",
    "[[1]]", '["8.6"]', '["9"]', '["x"]', '[""]', "[8.6]", '["nan"]', '["1e9"]', '["-8.6"]', "1" * 5000,
]  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("presets") / "fuzzed.toml"


@fuzzed(1500)
def test_preset(path: Path, random: RandomInput) -> None:
    lines = list(LINES)
    for _ in range(random.randrange(4)):
        index = random.randrange(len(lines))
        lines[index] = f"{lines[index].partition('=')[0]}= {random.choice(VALUES)}"
    raw = random.spliced("\n".join(lines).encode())
    if random.chance(0.02):
        raw += b"\nx = " + b"[" * random.choice([100, 20_000])
    path.write_bytes(raw)
    with contextlib.suppress(EngineError, SettingError):
        assert read_preset(str(path)).max_batch_size >= 1
