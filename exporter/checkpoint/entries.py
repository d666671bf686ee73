"""Which files of a checkpoint folder may be read.

The rule: what a file name resolves to lies inside the folder, or is a blob of a Hugging Face cache
(models--*/blobs/*), because a cache's snapshot folder and older downloads hold links to blobs. Any other link
leaves the folder and is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from artifact.errors import CheckpointError
from artifact.json_fields import load_json_object

_LFS_POINTER = b"version https://git-lfs"


def checked_file(folder: Path, relative: str) -> Path | None:
    """``folder``/``relative`` as a readable regular file, or None if there is none.

    CheckpointError: a link that leaves the folder (see the rule above) or leads nowhere, a folder or device,
    a file without read permission, or a Git LFS pointer in place of the file.
    """
    path = folder / relative
    try:
        if not path.is_symlink() and not path.exists():
            return None
        target = path.resolve()
        if not target.is_relative_to(folder.resolve()) and not _is_cache_blob(target):
            raise CheckpointError(f"{path}: is a link that leaves the checkpoint folder: put the file in its place")
        if not target.exists():
            raise CheckpointError(f"{path}: is a link to a missing file: download the checkpoint again")
        if not target.is_file():
            raise CheckpointError(f"{path}: expected a file, found something else: download the checkpoint again")
        with target.open("rb") as file:
            head = file.read(len(_LFS_POINTER))
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, in Python before 3.13
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path}: cannot be read: {reason}") from error
    if head == _LFS_POINTER:
        raise CheckpointError(f"{path}: is a Git LFS pointer, not the file itself: run git lfs pull in the checkpoint")
    return path


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """The JSON object in ``folder``/``name``, or None if there is none; CheckpointError when malformed."""
    path = checked_file(folder, name)
    return None if path is None else load_json_object(path, CheckpointError)


def check_json(path: Path) -> None:
    """Raise CheckpointError unless ``path`` holds JSON (so that a truncated tokenizer is noticed at export)."""
    try:
        json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not valid JSON: download it again") from error


def _is_cache_blob(target: Path) -> bool:
    return target.parent.name == "blobs" and target.parent.parent.name.startswith("models--")
