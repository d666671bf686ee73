"""Presets of configs/ and their validated reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.artifact.errors import EngineError, SettingError
from hybridge.artifact.resources import data_folder
from hybridge.trt_plugins.build.presets import preset_for, preset_names, read_preset

DEVICES = {
    "jetson-orin": "8.7",
    "jetson-thor": "11.0",
    "rtx-ampere": "8.6",
    "rtx-ada": "8.9",
    "rtx-blackwell": "12.0",
    "dgx-spark": "12.1",
}
PRESET = """
description = "a test"
compute_capabilities = ["8.6"]
max_batch_size = 4
max_seq_len = 100

[prefill]
opt_batch = 2
opt_seq = 16
max_seq = 64

[decode]
opt_batch = 3
"""


def preset_file(folder: Path, text: str) -> str:
    path = folder / "own.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_preset_ships_for_every_device() -> None:
    assert set(preset_names()) == {*DEVICES, "generic"}
    assert {name: read_preset(name).compute_capabilities for name in DEVICES} == {
        name: (capability,) for name, capability in DEVICES.items()
    }


@pytest.mark.parametrize(("name", "capability"), DEVICES.items())
def test_preset_of_a_capability(name: str, capability: str) -> None:
    preset = preset_for(capability)
    assert preset is not None and preset.name == name


def test_no_preset_of_an_unknown_capability() -> None:
    assert preset_for("9.0") is None


def test_documentation_lists_every_preset() -> None:
    text = (data_folder("configs") / "README.md").read_text(encoding="utf-8")
    assert [name for name in preset_names() if f"| `{name}` |" not in text] == []


def test_own_file(tmp_path: Path) -> None:
    preset = read_preset(preset_file(tmp_path, PRESET))
    assert (preset.name, preset.prefill_opt_batch, preset.decode_opt_batch) == ("own", 2, 3)
    assert (preset.workspace_mib, preset.optimization_level) == (None, None)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[prefill]", "fast = true\n[prefill]", "unknown field.*fast"),
        ("max_seq = 64", "max_seq = 64\nmin_seq = 2", "unknown field.*min_seq"),
        ("max_batch_size = 4", "", "max_batch_size"),
        ("max_batch_size = 4", 'max_batch_size = "4"', "max_batch_size: expected an integer"),
        ("max_batch_size = 4", "max_batch_size = 0", "at least 1"),
        ("opt_seq = 16", "opt_seq = 65", r"prefill\.opt_seq of at most prefill\.max_seq \(64\), found 65"),
        ("max_seq = 64", "max_seq = 101", r"prefill\.max_seq of at most max_seq_len"),
        ("opt_batch = 3", "opt_batch = 5", r"decode\.opt_batch of at most max_batch_size"),
        ("opt_batch = 2", "opt_batch = 5", r"prefill\.opt_batch of at most max_batch_size"),
        ("max_seq_len = 100", "max_seq_len = 100\noptimization_level = 6", "optimization_level of at most 5"),
        ('["8.6"]', "[8.6]", "compute_capabilities: expected a list of strings"),
        ("[decode]", "[decode", "not valid TOML"),
    ],
)
def test_malformed_file_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        read_preset(preset_file(tmp_path, PRESET.replace(old, new, 1)))


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"dgx-spark.*rtx-ampere.*found 'rtx-turing'"):
        read_preset("rtx-turing")


def test_missing_file_is_named() -> None:
    with pytest.raises(SettingError, match=r"expected the file absent\.toml, found none"):
        read_preset("absent.toml")
