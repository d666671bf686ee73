"""Find the data that ships with the code: build presets and CUDA sources."""

from __future__ import annotations

from pathlib import Path

from hybridge.artifact.errors import HybridgeError

# The package hybridge. Not resolved: in a checkout, its subpackages and data folders are links to the top folders.
_PACKAGE = Path(__file__).absolute().parents[1]


def data_folder(name: str) -> Path:
    """The folder ``name`` ("configs", "plugin_src") of the installation. HybridgeError: it is missing."""
    folder = _PACKAGE / name
    if not folder.is_dir():
        raise HybridgeError(f"the installation lacks its data folder {name!r}: install hybridge again")
    return folder
