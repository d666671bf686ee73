"""Finished steps of ``hybridge quantize``, stored beside its output until the output is complete."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import EngineError, HybridgeError, OutputError, SettingError, described
from hybridge.artifact.limits import JSON_BYTES
from hybridge.artifact.temporary_folder import lock_folder
from hybridge.artifact.transient import is_transient
from hybridge.artifact.untrusted_file import has_file, read_inside
from hybridge.artifact.user_cache import make_private

_JOURNAL = "journal.jsonl"
_DIGEST = "digest"
_ANEW = "leave `resume` out to begin anew"


class WorkFolder:
    """The hidden ``folder`` of unfinished shards, and its journal: a line of JSON for each finished step.

    A step is in the journal only after its files are on the disk. Steps have names of their own.
    """

    def __init__(self, folder: Path, steps: dict[str, Any]) -> None:
        self.folder, self._steps = folder, steps

    @property
    def has_results(self) -> bool:
        """Whether any step is finished."""
        return any(step != _DIGEST for step in self._steps)

    def result(self, step: str) -> Any:
        """The result that ``finish`` stored; None if the step is not finished."""
        return self._steps.get(step)

    def finish(self, step: str, result: Any) -> None:
        """Record that ``step`` is finished; ``result``, not None, is written as JSON."""
        with (self.folder / _JOURNAL).open("ab") as file:
            file.write(_line(step, result))
            file.flush()
            os.fsync(file.fileno())
        self._steps[step] = result

    def forget(self, steps: list[str]) -> None:
        """Mark ``steps`` as unfinished."""
        self._steps = {step: result for step, result in self._steps.items() if step not in steps}
        _write_journal(self.folder, self._steps)


def work_path(out: Path) -> Path:
    """Where the work folder of ``out`` is while a run writes it, and after the run was stopped."""
    return out.parent / f".{out.name}.hybridge-quantize"


@contextlib.contextmanager
def work_folder(out: Path, digest: str, resume: bool) -> Iterator[WorkFolder]:
    """The work folder of ``out``, whose parent exists. ``resume``: continue a run that was stopped.

    It is removed at the end, also by an error, unless steps are finished and the error is transient or Ctrl-C; the
    error then says how to resume. ``digest`` covers all that the results depend on.
    SettingError: to resume, but that run had another digest. OutputError: another run uses the folder, or another user
    can change it, or a system's error. EngineError: too little memory, or a GPU fails.
    """
    folder = work_path(out)
    with _locked(folder, out):
        steps = _steps(folder, digest) if resume else {}
        if not steps:
            _clear(folder)
            steps = {_DIGEST: digest}
        work = WorkFolder(folder, steps)
        try:
            # Also anew without a last line that was cut off, which the next one would continue.
            _write_journal(folder, steps)
            yield work
        except BaseException as error:
            if not work.has_results or (isinstance(error, Exception) and not is_transient(error)):
                shutil.rmtree(folder, ignore_errors=True)
                raise
            if not isinstance(error, Exception) or isinstance(error, BrokenPipeError):
                raise
            raise _resumable(error, out, folder) from error
        shutil.rmtree(folder, ignore_errors=True)


def _resumable(error: Exception, out: Path, folder: Path) -> HybridgeError:
    """What ``error`` says, and how to go on."""
    remedy = f"{folder} keeps the finished layers: pass `resume=True` to continue"
    if isinstance(error, HybridgeError):
        return type(error)(f"{error}; {remedy}")
    if isinstance(error, MemoryError):
        return EngineError(f"{out}: the machine is out of memory: close other programs; {remedy}")
    if not isinstance(error, OSError):
        return EngineError(f"{out}: {described(error)}: free memory or check the GPU; {remedy}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutputError(f"{out}: the disk is full: free space; {remedy}")
    return OutputError(f"{error.filename or out}: {error.strerror or error}; {remedy}")


@contextlib.contextmanager
def _locked(folder: Path, out: Path) -> Iterator[None]:
    while True:
        _make(folder)
        lock = lock_folder(folder, wait=False)
        if lock is None and os.name == "posix":
            raise OutputError(f"{out}: another run writes it, found {folder} in use: wait for it, or give another path")
        # A run that ended may have removed it before it was locked.
        if folder.is_dir():
            break
        if lock is not None:
            os.close(lock)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _make(folder: Path) -> None:
    try:
        make_private(folder)
    except (PermissionError, FileExistsError) as error:
        raise OutputError(f"{folder}: {error.strerror}: remove it, or give another path") from error
    if folder.is_symlink():
        raise OutputError(f"{folder}: expected a folder, found a link: remove it, or give another path")


def _steps(folder: Path, digest: str) -> dict[str, Any]:
    """The finished steps in the journal of ``folder``; none without a journal."""
    if not has_file(folder, _JOURNAL):
        return {}
    lines = read_inside(folder, _JOURNAL, JSON_BYTES, SettingError, _ANEW).split(b"\n")
    steps: dict[str, Any] = {}
    for line in lines[:-1]:  # the run may have been killed while it wrote the last one
        try:
            step, result = json.loads(line)
        except (ValueError, TypeError, RecursionError) as error:
            raise SettingError(f"resume: expected the journal of a run, found damage in {folder}: {_ANEW}") from error
        steps[str(step)] = result
    if steps and steps.get(_DIGEST) != digest:
        raise SettingError(
            "resume: expected the checkpoint, settings, text and versions of the run that left "
            f"{folder}, found others: {_ANEW}"
        )
    return steps


def _write_journal(folder: Path, steps: Mapping[str, Any]) -> None:
    temporary = folder / f"{_JOURNAL}.new"
    with temporary.open("wb") as file:
        file.writelines(_line(step, result) for step, result in steps.items())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / _JOURNAL)


def _line(step: str, result: Any) -> bytes:
    return json.dumps([step, result]).encode() + b"\n"


def _clear(folder: Path) -> None:
    """Remove all that is in the folder, which stays locked."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
