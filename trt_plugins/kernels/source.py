"""A CUDA kernel as source: file, entry point and the macros that choose its variant."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import HybridgeError
from hybridge.artifact.resources import data_folder

SOURCE_FOLDER = "plugin_src"
# Device type of each element type, as plugin_src/common/element.cuh knows it.
CUDA_TYPES = {DType.FLOAT32: "float", DType.FLOAT16: "__half", DType.BFLOAT16: "__nv_bfloat16"}

_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class KernelSource:
    """One compilation: ``file`` (relative to plugin_src) with ``defines``, of which ``entry`` is launched.

    entry: the name of an ``extern "C" __global__`` function.
    defines: macro name and text, in a fixed order.
    hot: compilation fails the kernel check when it spills registers or keeps a stack in local memory.
    """

    file: str
    entry: str
    defines: tuple[tuple[str, str], ...] = ()
    hot: bool = True

    @classmethod
    def of(cls, file: str, entry: str, defines: Mapping[str, object], hot: bool = True) -> KernelSource:
        """The same with macros by name: numbers, texts, element types, and 1 or 0 for True or False."""
        return cls(file, entry, tuple((name, _macro_text(value)) for name, value in defines.items()), hot)

    @property
    def label(self) -> str:
        """A short text that names the variant in messages and tables."""
        return f"{self.entry}[{', '.join(f'{name}={value}' for name, value in self.defines)}]"

    def digest(self) -> str:
        """sha256 of everything that is compiled: the file, every header that it reaches, and the macros."""
        digest = hashlib.sha256(repr((self.entry, self.defines)).encode())
        for path in reached_files(self.file):
            digest.update(path.encode() + b"\0" + (source_folder() / path).read_bytes() + b"\0")
        return digest.hexdigest()


def _macro_text(value: object) -> str:
    if isinstance(value, DType):
        return CUDA_TYPES[value]
    return str(int(value)) if isinstance(value, bool) else str(value)


def source_folder() -> Path:
    """plugin_src of the checkout, or the copy that an installed wheel carries."""
    return data_folder(SOURCE_FOLDER)


@cache
def sources_digest() -> str:
    """A short hash of all CUDA sources: what was measured with other kernels has another."""
    digest, folder = hashlib.sha256(), source_folder()
    for path in sorted(folder.rglob("*.cu*")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def reached_files(file: str) -> tuple[str, ...]:
    """``file`` and the project's headers that it includes, directly or not, sorted; relative to plugin_src.

    Includes in quotes are written relative to plugin_src. HybridgeError when one of them is missing.
    """
    reached: set[str] = set()
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            waiting.extend(_INCLUDE.findall(_text(path)))
    return tuple(sorted(reached))


@cache
def _read(path: Path, modified: int) -> str:
    return path.read_text(encoding="utf-8")


def _text(file: str) -> str:
    path = source_folder() / file
    if not path.is_file():
        raise HybridgeError(f"expected the CUDA source {file} in {source_folder()}, found none: install hybridge again")
    return _read(path, path.stat().st_mtime_ns)
