"""Failures as one sentence and an exit code."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from hybridge.artifact.errors import HybridgeError
from hybridge.cli.usage_errors import usage_sentence
from hybridge.requirements import EXTRAS, missing

BAD_INPUT = 2
INTERNAL_ERROR = 3
# What a shell reports of a program that Ctrl-C ended: 128 and the signal's number.
INTERRUPTED = 130


class Interrupted(Exception):
    """Ctrl-C where something is left; the message says what."""


@dataclass(frozen=True)
class Failure:
    """``internal`` failures are bugs: their traceback is printed too."""

    message: str
    exit_code: int = BAD_INPUT
    internal: bool = False


def failure_of(error: BaseException) -> Failure:
    """The failure for ``error``."""
    if isinstance(error, HybridgeError):
        return Failure(str(error), error.exit_code)
    if isinstance(error, Interrupted):
        return Failure(f"interrupted: {error}", INTERRUPTED)
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        return Failure("interrupted: the command did not finish and left no partial output", INTERRUPTED)
    if hasattr(error, "format_message"):
        return Failure(usage_sentence(error))
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").split(".")[0]) in EXTRAS:
        return Failure(missing(package))
    if isinstance(error, OSError):
        return Failure(_os_error(error))
    if isinstance(error, MemoryError):
        return Failure("the machine is out of memory: close other programs or take a smaller model")
    return Failure(f"internal error, please report it: {type(error).__name__}: {error}", INTERNAL_ERROR, internal=True)


def _os_error(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}the disk is full: free space or give another path"
    return f"{where}{error.strerror or error}"
