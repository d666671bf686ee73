"""Loading torch's libraries on another processor while Python imports what comes before torch."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from importlib.util import find_spec
from pathlib import Path


def preload_torch() -> None:
    """Start to load torch's C++ libraries, a tenth of the time that importing torch takes, unless it is imported.

    Loading needs no interpreter lock. Where it fails, ``import torch`` loads them in its own way.
    """
    spec = None if "torch" in sys.modules else find_spec("torch")
    if spec is not None and spec.origin is not None:
        library = Path(spec.origin).parent / "lib" / "libtorch.so"
        threading.Thread(target=_load, args=(library,), name="preload torch", daemon=True).start()


def _load(library: Path) -> None:
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(library))
