"""Versions of the tools that took part in an export, for the manifest."""

from __future__ import annotations

import platform
from importlib import metadata

from hybridge.artifact.version import __version__

PACKAGES = ("torch", "onnx", "onnxscript", "onnx-ir", "numpy")


def tool_versions() -> dict[str, str]:
    """Package -> version, "not installed" where a package has no metadata."""
    versions = {"python": platform.python_version(), "hybridge": __version__}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
