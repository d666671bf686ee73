"""Which files of a checkpoint folder may be read: those that artifact.untrusted_file accepts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.json_fields import load_json_object
from hybridge.artifact.limits import JSON_BYTES, TEMPLATE_BYTES, TOKENIZER_BYTES
from hybridge.artifact.untrusted_file import has_file, open_inside, read_inside

_LFS_POINTER = b"version https://git-lfs"
_REMEDY = "download the checkpoint again"
_VOCABULARY_FILES = frozenset({"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json"})


def checked_file(folder: Path, relative: str) -> Path | None:
    """``folder``/``relative`` as a readable regular file, or None if there is none.

    CheckpointError: a link that leaves the folder or is broken, a folder or device, a file without read
    permission, or a Git LFS pointer in place of the file.
    """
    if not has_file(folder, relative):
        return None
    path = folder / relative
    with open_inside(folder, relative, None, CheckpointError, _REMEDY) as file:
        try:
            head = file.read(len(_LFS_POINTER))
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}: {_REMEDY}") from error
    if head == _LFS_POINTER:
        raise CheckpointError(f"{path}: is a Git LFS pointer, not the file itself: run git lfs pull in the checkpoint")
    return path


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """The JSON object in ``folder``/``name``, or None if there is none; CheckpointError when malformed."""
    path = checked_file(folder, name)
    return None if path is None else load_json_object(path, CheckpointError)


def check_side_file(folder: Path, relative: str) -> None:
    """CheckpointError when a file that is carried along is too large, or must be JSON and is not (truncated)."""
    raw = read_inside(folder, relative, side_file_bytes(relative), CheckpointError, _REMEDY)
    if not relative.endswith(".json"):
        return
    try:
        json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder / relative}: is not valid JSON: download it again") from error


def copy_side_file(folder: Path, relative: str, target: Path) -> None:
    """Copy ``folder``/``relative`` to the new file ``target``. OSError: ``target`` cannot be written."""
    with (
        open_inside(folder, relative, side_file_bytes(relative), CheckpointError, _REMEDY) as source,
        target.open("xb") as copy,
    ):
        shutil.copyfileobj(source, copy)


def side_file_bytes(relative: str) -> int:
    """The most bytes that a file other than the weights may have."""
    if relative.endswith(".jinja"):
        return TEMPLATE_BYTES
    return TOKENIZER_BYTES if relative in _VOCABULARY_FILES else JSON_BYTES
