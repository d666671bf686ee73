"""Where an export may go: nothing is ever written into the checkpoint, and no folder of others is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridge.artifact.errors import OutputError
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.output import check_export_output
from tests.exporter.checkpoint.folders import single

OWN, INSIDE, AROUND = "is the checkpoint's own folder", "is inside the checkpoint c", "holds the checkpoint c"


@pytest.fixture(autouse=True)
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint in the current folder, as most users have it."""
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path / "models")
    (tmp_path / "models" / "link").symlink_to("c")
    return single(Path("c"))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("source", "out", "words"),
    [
        ("c", "c", OWN),
        ("c", "./c/", OWN),
        ("c", "../models/c", OWN),
        ("c", "link/", OWN),
        ("link", "c", OWN),
        ("c", "c/out", INSIDE),
        ("c", "c/deep/er/out", INSIDE),
        ("c", "link/out", INSIDE),
        ("c", "../models", AROUND),
    ],
)
def test_the_checkpoint_is_never_written_to(source: str, out: str, words: str, overwrite: bool) -> None:
    before = sorted(Path("..").rglob("*"))
    with pytest.raises(OutputError, match=words):
        export_checkpoint(Path(source), Path(out), ExportOptions(overwrite=overwrite))
    assert sorted(Path("..").rglob("*")) == before


def test_an_artifact_that_holds_the_checkpoint_is_never_replaced() -> None:
    Path("manifest.json").write_text('{"manifest_version": 1}')
    with pytest.raises(OutputError, match=AROUND):
        check_export_output(Path("c"), Path("../models"), overwrite=True)


def test_another_name_of_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that ignores case, or through a mount."""
    single(Path("C"))
    same = os.path.samefile
    monkeypatch.setattr(os.path, "samefile", lambda a, b: str(a).lower() == str(b).lower() or same(a, b))
    with pytest.raises(OutputError, match=OWN):
        check_export_output(Path("c"), Path("C"), overwrite=True)


def test_folders_next_to_the_checkpoint_are_accepted() -> None:
    for out in ("c2", "../c", "new/c"):
        check_export_output(Path("c"), Path(out), overwrite=False)


def test_a_folder_of_others_is_never_replaced() -> None:
    single(Path("other"))
    with pytest.raises(OutputError, match="other: holds files and is not an export"):
        check_export_output(Path("c"), Path("other"), overwrite=True)
