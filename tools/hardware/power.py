"""Electric power while a block runs: from tegrastats (Jetson) or nvidia-smi; nothing if neither is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

_MILLISECONDS = 200
# Commands that print a line of power every _MILLISECONDS until they are killed, and what a line has: names and numbers.
_METERS = (
    (["tegrastats", "--interval", str(_MILLISECONDS)], re.compile(r"(V\w+) (\d+)mW"), 1e-3),
    (
        ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader", "-i", "0", "-lms", str(_MILLISECONDS)],
        re.compile(r"()([\d.]+) W"),
        1.0,
    ),
)
_GPU = "gpu"


class PowerMeter:
    """Reads power in a thread between enter and exit."""

    def __init__(self) -> None:
        self._tool: str | None = None
        self._watts: dict[str, list[float]] = {}

    def __enter__(self) -> PowerMeter:
        found = next((meter for meter in _METERS if shutil.which(meter[0][0])), None)
        self._process: subprocess.Popen[str] | None = None
        if found is not None:
            command, pattern, unit = found
            self._tool = command[0]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self._thread = threading.Thread(target=self._read, args=(self._process, pattern, unit), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._thread.join()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()

    def document(self) -> Mapping[str, Any] | None:
        """Tool, number of samples and, by rail, mean and peak in watts; None where nothing was measured."""
        if not self._watts:
            return None
        rails = {n: {"mean_w": sum(watts) / len(watts), "peak_w": max(watts)} for n, watts in self._watts.items()}
        return {"tool": self._tool, "samples": max(map(len, self._watts.values())), "rails": rails}

    def _read(self, process: subprocess.Popen[str], pattern: re.Pattern[str], unit: float) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            for name, value in pattern.findall(line):
                self._watts.setdefault(name or _GPU, []).append(float(value) * unit)
