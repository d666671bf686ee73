"""Mapping a part of an untrusted folder's file into memory."""

from __future__ import annotations

from pathlib import Path, PurePath

import numpy as np

from hybridge.artifact.errors import ArtifactError, HybridgeError
from hybridge.artifact.untrusted_file import open_inside, size_of


def map_inside(
    folder: Path,
    name: str | PurePath,
    offset: int,
    nbytes: int,
    copy_on_write: bool = False,
    error: type[HybridgeError] = ArtifactError,
    remedy: str = "export the checkpoint again",
) -> np.ndarray:
    """``nbytes`` bytes [nbytes] of the file from ``offset`` on; nothing is read until it is used.

    copy_on_write: the array may be written to, the file stays unchanged; else it is read-only.
    ``error``: the file cannot be opened (artifact.untrusted_file) or is shorter.
    """
    with open_inside(folder, name, None, error, remedy) as file:
        size = size_of(file)
        if size < offset + nbytes:
            raise error(
                f"{folder / name}: expected {offset + nbytes} bytes, found {size}: the file is truncated: {remedy}"
            )
        if nbytes == 0:
            return np.empty(0, np.uint8)
        try:
            return np.memmap(file, np.uint8, "c" if copy_on_write else "r", offset, (nbytes,))
        except (OSError, ValueError) as cause:  # ValueError: it was cut after its size was read
            raise error(f"{folder / name}: cannot be mapped into memory: {cause}: {remedy}") from cause
