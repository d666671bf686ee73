"""The library of CPU kernels in plugin_src/cpu, compiled once for each user with the system's C++ compiler."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from hybridge.artifact.errors import HybridgeError
from hybridge.artifact.resources import data_folder
from hybridge.artifact.user_cache import is_private, user_cache_folder

CPU_DOMAIN = "hybridge.cpu"
"""ONNX domain of the library's operators."""

_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-w")
# Instruction sets that have a file of their own, by platform.machine().
_X86 = {
    "kernels_avx2": ("-mavx2", "-mfma", "-mf16c"),
    "kernels_avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma"),
}
_SETS: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"x86_64": _X86, "AMD64": _X86, "aarch64": {"kernels_neon": ("-march=armv8.2-a+dotprod",)}}
)
_COMPILE_SECONDS = 300


class CpuLibrary(NamedTuple):
    """``path`` of the library; None with the ``reason`` if there is none."""

    path: Path | None
    reason: str = ""


@lru_cache(maxsize=1)
def library_key() -> str:
    """The library's cache key: a hash of its sources, flags, compiler and machine. Empty where it cannot be compiled.

    Nothing is compiled.
    """
    compiler = _compiler()
    if compiler is None:
        return ""
    with contextlib.suppress(HybridgeError, OSError):
        digest = hashlib.sha256(repr((compiler, _FLAGS, platform.machine(), sys.platform)).encode())
        for path in sorted(data_folder("plugin_src").joinpath("cpu").iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()[:32]
    return ""


@lru_cache(maxsize=1)
def cpu_library() -> CpuLibrary:
    """The library, compiled now if the user's cache lacks it; it is used only from a folder that no other user can
    change."""
    key, compiler = library_key(), _compiler()
    if not key or compiler is None:
        return CpuLibrary(None, f"expected a C++ compiler ({', '.join(_COMPILERS)}), found none")
    try:
        folder = user_cache_folder("cpu")
        if not is_private(folder, "the library of CPU kernels is not used"):
            return CpuLibrary(None, f"expected a folder that only you can write, found {folder}")
        path = folder / f"{key}.so"
        if not path.is_file():
            with _locked(folder / "lock"):
                if not path.is_file():
                    _compile(compiler, path)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return CpuLibrary(None, " ".join(str(error).split())[:300])
    return CpuLibrary(path)


def library_failed() -> bool:
    """Whether this process needed the library and could not compile it, although there is a compiler."""
    return bool(library_key()) and cpu_library.cache_info().currsize > 0 and cpu_library().path is None


def _compiler() -> str | None:
    if sys.platform != "linux":
        return None
    return next((found for name in _COMPILERS if (found := shutil.which(name)) is not None), None)


def _compile(compiler: str, path: Path) -> None:
    """Write the library ``path``. RuntimeError: the compiler refuses the sources."""
    sources = sorted(data_folder("plugin_src").joinpath("cpu").glob("*.cpp"))
    sets = _SETS.get(platform.machine(), {})
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        objects = [Path(work) / f"{source.stem}.o" for source in sources]
        running = [
            subprocess.Popen(
                [compiler, *_FLAGS, *sets.get(source.stem, ()), "-c", str(source), "-o", str(made)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for source, made in zip(sources, objects, strict=True)
        ]
        results = [(process, process.communicate(timeout=_COMPILE_SECONDS)[1]) for process in running]
        for process, message in results:
            if process.returncode:
                raise RuntimeError(f"{compiler} failed: {message.decode(errors='replace')}")
        whole = Path(work) / "library.so"
        command = [compiler, "-shared", *map(str, objects), "-o", str(whole)]
        subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_SECONDS)
        whole.chmod(0o700)
        os.replace(whole, path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time: others wait for its library instead of compiling their own."""
    import fcntl  # not on Windows, where nothing is compiled

    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
