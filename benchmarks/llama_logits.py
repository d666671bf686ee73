"""Logits of llama.cpp, by a program of ours."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.llama_program import compiled


class LlamaLogits:
    """Computes logits of GGUF files. The program and the tokens that it reads are written to ``work``."""

    def __init__(self, folder: Path, work: Path, threads: int) -> None:
        """Compile. CalledProcessError if the compiler fails, after its last output on standard error."""
        self._tokens, self._threads = work / "llama_tokens", threads
        self._program = compiled("llama_logits", folder, work)

    def of(self, file: Path, windows: Sequence[np.ndarray], first: int) -> Iterator[np.ndarray]:
        """Logits [n, vocab] float32 after the tokens of each window, from ``first`` to the last but one."""
        np.stack(windows).astype(np.int32).tofile(self._tokens)
        counts = [str(windows[0].size), str(first), str(self._threads)]
        command = [str(self._program), str(file), str(self._tokens), *counts]
        output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        rows = len(windows), windows[0].size - first
        for window in np.frombuffer(output, np.float32).reshape(*rows, -1):
            yield window[:-1]
