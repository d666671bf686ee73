"""A pipe, a device or a link out instead of any file of an artifact: one sentence at once, and nothing is read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import hybridge

Capture = pytest.CaptureFixture[str]
FILES = (
    "manifest.json",
    "config.json",
    "model.onnx",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "weights/model.safetensors",
)
# Read by inspect, which tells by them what a folder is.
MARKS = ("manifest.json", "config.json")


def to_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def large(path: Path) -> None:
    """1 TiB that takes no room."""
    path.touch()
    os.truncate(path, 1 << 40)


KINDS: dict[str, Callable[[Path], object]] = {"pipe": os.mkfifo, "device": to_zero, "large": large}
# Weights may be large: nothing reads more of them than the graph names.
CASES = [
    pytest.param(name, kind, marks=[] if kind == "pipe" else pytest.mark.slow)
    for name in FILES
    for kind in KINDS
    if (kind, name) != ("large", FILES[-1])
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_special_files_instead_of_a_file(capfd: Capture, artifact: Path, tmp_path: Path, name: str, kind: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(artifact, copy)
    (copy / name).unlink()
    KINDS[kind](copy / name)
    prompt = ("--prompt", "a", "--max-new-tokens", "1")
    outcome = hybridge(capfd, "inspect", copy) if name in MARKS else hybridge(capfd, "run", copy, *prompt)
    assert outcome.code == 2 and "internal error" not in outcome.error
    if name not in MARKS:
        assert Path(name).name in outcome.error


def test_verify_looks_at_the_checkpoint_first(capfd: Capture, artifact: Path, checkpoint: Path, tmp_path: Path) -> None:
    """transformers would wait forever."""
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    (copy / "generation_config.json").unlink()
    os.mkfifo(copy / "generation_config.json")
    outcome = hybridge(capfd, "verify", copy, artifact)
    assert outcome.code == 2 and "generation_config.json: expected a file, found a pipe" in outcome.error
