"""Write a file atomically: it exists completely or not at all; leftovers of killed processes are removed later."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hybridge.artifact.temporary_folder import PARTIAL, clear_left_over, temporary_folder


@contextlib.contextmanager
def written_file(path: Path, lasting: bool = True) -> Iterator[BinaryIO]:
    """Yield a new file that becomes ``path`` when the block ends well; on any exception ``path`` stays unchanged.

    Only its user may read it. lasting: bring it to the disk first, so that a power cut leaves it whole. What killed
    writers of ``path`` left is removed first. OSError: it cannot be written.
    """
    clear_left_over(path)
    with temporary_folder(path, PARTIAL) as folder:
        with open(folder / "content", "xb", opener=_private) as file:
            yield file
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        os.replace(folder / "content", path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
