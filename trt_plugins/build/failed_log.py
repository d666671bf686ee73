"""The log of a failed build, saved next to where the engine's folder would be."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hybridge.artifact.errors import EngineError


def failed_log_path(out: Path) -> Path:
    """Where the log of a failed build of the engine folder ``out`` is kept."""
    return out.with_name(f"{out.name}.failed.log")


@contextlib.contextmanager
def saved_log(log: Path, saved: Path) -> Iterator[None]:
    """When the build in the block fails, its ``log`` becomes ``saved`` and the EngineError names it.

    A build that succeeds removes what an earlier one saved; an interrupted one leaves it.
    """
    try:
        yield
    except EngineError as error:
        if not _move(log, saved):
            raise
        raise EngineError(f"{error}: TensorRT's log is kept in {saved}") from error
    saved.unlink(missing_ok=True)


def _move(log: Path, saved: Path) -> bool:
    """True when ``log`` held something and is now ``saved``."""
    try:
        if log.stat().st_size == 0:
            return False
        os.replace(log, saved)
    except OSError:
        return False
    return True
