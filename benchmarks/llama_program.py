"""Compiles programs of ours against a built checkout of llama.cpp."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peer_program import run_program


def compiled(name: str, folder: Path, work: Path) -> Path:
    """The program in ``work`` from the source ``name``.cpp beside this file, with the libraries of ``folder``.

    CalledProcessError if the compiler fails, after its last output on standard error.
    """
    program, source, libraries = work / name, Path(__file__).with_name(f"{name}.cpp"), folder / "build" / "bin"
    parts = ["-I", str(folder / "include"), "-I", str(folder / "ggml" / "include"), str(source)]
    parts += ["-o", str(program), "-L", str(libraries), "-lllama", "-lggml", "-lggml-base"]
    run_program(["c++", "-O1", "-std=c++17", *parts, f"-Wl,-rpath,{libraries.resolve()}"])
    return program
