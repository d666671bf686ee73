"""Find the data that ships with the code: build presets and CUDA sources, in a checkout or in an installed wheel."""

from __future__ import annotations

from pathlib import Path

from artifact.errors import HybridgeError

_PACKAGE = Path(__file__).resolve().parent


def data_folder(name: str) -> Path:
    """The folder ``name`` ("configs", "plugin_src"): beside the packages, or in artifact/_data of a wheel."""
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise HybridgeError(f"the installation lacks its data folder {name!r}: install hybridge again")
