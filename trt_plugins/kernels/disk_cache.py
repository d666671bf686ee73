"""Compiled kernels on disk, keyed by everything that decides the machine code.

An entry is one file: a line of JSON (format, sha256 of the code, resource report or null), then the code. Files are
written under another name and renamed, so that a reader sees a whole entry or none; an entry that does not match its
own checksum is compiled again.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from hybridge.artifact.errors import EngineError
from hybridge.artifact.json_fields import json_object
from hybridge.artifact.limits import CACHE_ENTRY_BYTES
from hybridge.artifact.untrusted_file import read_given
from hybridge.artifact.user_cache import make_private, user_cache_folder
from hybridge.artifact.written_file import written_file
from hybridge.trt_plugins.kernels.compiler import STANDARD, CompiledKernel, compile_kernel, compiler_version
from hybridge.trt_plugins.kernels.ptx_registers import unset_uses
from hybridge.trt_plugins.kernels.resource_report import ResourceReport
from hybridge.trt_plugins.kernels.source import KernelSource

FORMAT = 1


class KernelCache:
    """Compiled kernels in ``folder``, which is made when the first one is stored."""

    def __init__(
        self,
        folder: Path | None = None,
        compile_: Callable[[KernelSource, str], CompiledKernel] = compile_kernel,
        version: Callable[[], str] = compiler_version,
    ) -> None:
        self.folder = folder or default_folder()
        self._compile = compile_
        self._version = version
        self._warned = False

    def get(self, source: KernelSource, architecture: str, with_report: bool = False) -> CompiledKernel:
        """The compiled kernel, from disk where a valid entry is there. A folder that cannot be written, or that other
        users can write, is not an error, but a warning.

        with_report: an entry without the assembler's report, or whose PTX was not examined, is compiled again.
        """
        path = self.path(source, architecture)
        compiled = _read(path) if self._usable() else None
        if compiled is None or (with_report and (compiled.report is None or compiled.report.unset_use is None)):
            compiled = self._compile(source, architecture)
            if with_report:
                compiled = _examined(compiled, source.entry)
            if self._usable():
                try:
                    _write(path, compiled)
                except OSError as error:
                    self._tell(error)
        return compiled

    def _usable(self) -> bool:
        """Whether the folder is there and this user's alone."""
        try:
            make_private(self.folder)
        except OSError as error:
            self._tell(error)
            return False
        return True

    def _tell(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.folder}: compiled kernels cannot be kept ({error.strerror or error}) and are compiled again at "
                "every start: set XDG_CACHE_HOME to a folder that only you can write",
                RuntimeWarning,
                stacklevel=3,
            )

    def path(self, source: KernelSource, architecture: str) -> Path:
        """Where the entry is: its name is the hash of sources, macros, architecture, compiler and options."""
        key = repr((FORMAT, source.digest(), architecture, self._version(), STANDARD))
        return self.folder / f"{source.entry}-{architecture}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"


def _examined(compiled: CompiledKernel, entry: str) -> CompiledKernel:
    """With the first use of an unset register in the report; unchanged where there is no report or no PTX."""
    if compiled.report is None or not compiled.ptx:
        return compiled
    uses = unset_uses(compiled.ptx, entry)
    return replace(compiled, report=replace(compiled.report, unset_use=uses[0].instruction if uses else ""))


def default_folder() -> Path:
    """The user's cache folder: XDG_CACHE_HOME or ~/.cache, %LOCALAPPDATA% on Windows; its part ``hybridge/kernels``.

    EngineError when none of them is known.
    """
    try:
        return user_cache_folder("kernels")
    except RuntimeError as error:  # a user of a container without a home folder
        raise EngineError(
            f"expected a home folder for compiled kernels, found none: set XDG_CACHE_HOME to one ({error})"
        ) from error


def _read(path: Path) -> CompiledKernel | None:
    """The entry; None if there is none, or something else than this version would write."""
    try:
        head, _, code = read_given(path, CACHE_ENTRY_BYTES, EngineError).partition(b"\n")
        fields = json_object(head, str(path), EngineError)
        if fields["format"] == FORMAT and fields["sha256"] == hashlib.sha256(code).hexdigest():
            report = fields["report"]
            return CompiledKernel(code, None if report is None else ResourceReport(**report))
    except (EngineError, KeyError, TypeError):
        pass
    return None


def _write(path: Path, compiled: CompiledKernel) -> None:
    report = None if compiled.report is None else asdict(compiled.report)
    head = {"format": FORMAT, "sha256": hashlib.sha256(compiled.cubin).hexdigest(), "report": report}
    with written_file(path, lasting=False) as file:
        file.write(json.dumps(head).encode() + b"\n" + compiled.cubin)
