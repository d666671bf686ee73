"""Compiles a kernel with NVRTC, from pip packages alone; needs no GPU and no CUDA toolkit."""

from __future__ import annotations

import importlib.util
import io
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.kernels.resource_report import ResourceReport, report_from_log
from hybridge.trt_plugins.kernels.source import KernelSource, source_folder

_INSTALL = "install the packages of hybridge's extra 'cuda' (cuda-core, nvidia-cuda-nvrtc, nvidia-cuda-runtime)"
_HEADER = "cuda_fp16.h"
_TOOLKITS = ("CUDA_HOME", "CUDA_PATH")
_DEFAULT_TOOLKIT = "/usr/local/cuda"
STANDARD = "c++17"


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code for one architecture, and what the assembler said about its entry point.

    report: None where it said nothing; the code is as good. ptx: what the machine code was made of; "" where it
    comes from the disk.
    """

    cubin: bytes
    report: ResourceReport | None
    ptx: str = field(default="", repr=False, compare=False)


def compile_kernel(source: KernelSource, architecture: str) -> CompiledKernel:
    """Compile for ``architecture`` (sm_87 ...). EngineError with the compiler's words, or what is not installed."""
    core = _cuda_core()
    path = source_folder() / source.file
    log = io.StringIO()
    options = core.ProgramOptions(
        name=source.file,
        arch=architecture,
        std=STANDARD,
        include_path=[str(source_folder()), *include_folders()],
        define_macro=list(source.defines) or None,
        ptxas_options=["-v"],
        diag_error=[177, 550],  # a variable that is declared or set but never used
        no_cache=True,  # NVRTC's own (with a driver): what it keeps comes without the assembler's report
    )
    try:
        program = core.Program(path.read_text(encoding="utf-8"), "c++", options)
        code = program.compile("cubin", logs=log)
    except Exception as error:  # cuda.core has no common base of its errors
        reason = " ".join((log.getvalue() or str(error)).split())
        raise EngineError(f"NVRTC cannot compile {source.label} for {architecture}: {reason[:2000]}") from error
    return CompiledKernel(bytes(code.code), report_from_log(log.getvalue(), source.entry), _ptx(program))


def _ptx(program: Any) -> str:
    """The PTX that the compiler made of ``program``; "" where it keeps none."""
    from cuda.bindings import nvrtc

    result, size = nvrtc.nvrtcGetPTXSize(program.handle)
    text = bytes(max(size, 1)) if int(result) == 0 else b""
    if not text or int(nvrtc.nvrtcGetPTX(program.handle, text)[0]) != 0:
        return ""
    return text.rstrip(b"\0").decode()


@cache
def compiler_version() -> str:
    """The version of NVRTC, such as 13.5.37; part of the key of the cache."""
    _cuda_core()
    from cuda.bindings import nvrtc

    result, major, minor = nvrtc.nvrtcVersion()
    if int(result) != 0:
        raise EngineError(f"NVRTC does not tell its version ({result}): {_INSTALL}")
    return f"{major}.{minor}"


@cache
def include_folders() -> tuple[str, ...]:
    """Folders with the CUDA headers: of the pip package, else of an installed toolkit."""
    folders = [Path(folder) / "include" for folder in _package_folders()]
    folders += [Path(os.environ[name]) / "include" for name in _TOOLKITS if os.environ.get(name)]
    folders.append(Path(_DEFAULT_TOOLKIT) / "include")
    for folder in folders:
        if (folder / _HEADER).is_file():
            return tuple(str(path) for path in (folder, folder / "cccl") if path.is_dir())
    raise EngineError(f"expected the CUDA header {_HEADER}, found none: {_INSTALL}")


def _package_folders() -> list[str]:
    try:
        spec = importlib.util.find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        return []
    return list(spec.submodule_search_locations or []) if spec is not None else []


@cache
def _cuda_core() -> ModuleType:
    try:
        import cuda.core as core
    except ImportError as error:
        raise EngineError(
            f"compiling kernels needs cuda-core, which cannot be imported ({error}): {_INSTALL}"
        ) from error
    return core
