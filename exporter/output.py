"""Where an export may be written: never into, onto or around the checkpoint that it reads."""

from __future__ import annotations

import os
from pathlib import Path

from hybridge.artifact.errors import OutputError
from hybridge.artifact.folder import ARTIFACT, FolderKind, check_output


def check_export_output(checkpoint: Path, out: Path, overwrite: bool, kind: FolderKind = ARTIFACT) -> None:
    """OutputError when ``out`` exists, is in the checkpoint's folder or contains it; links are followed."""
    if checkpoint.is_dir():
        _check_apart(checkpoint, out)
    check_output(out, overwrite, kind)


def _check_apart(checkpoint: Path, out: Path) -> None:
    source, target = (Path(os.path.realpath(path)) for path in (checkpoint, out))
    if _same(source, target):
        raise OutputError(f"{out}: is the checkpoint's own folder: give another path")
    if any(_same(source, parent) for parent in target.parents):
        raise OutputError(f"{out}: is inside the checkpoint {checkpoint}: give a path outside of it")
    if any(_same(target, parent) for parent in source.parents):
        raise OutputError(f"{out}: holds the checkpoint {checkpoint}: give another path")


def _same(one: Path, other: Path) -> bool:
    """True for two names of one folder, also where names differ only in case or by a mount."""
    try:
        return one == other or os.path.samefile(one, other)
    except OSError:  # one of them does not exist
        return False
