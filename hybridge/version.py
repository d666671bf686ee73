"""The version of the installed distribution."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """The version, or "unknown" when the checkout is used without being installed."""
    try:
        return metadata.version("hybridge")
    except metadata.PackageNotFoundError:
        return "unknown"
