"""Errors of this engine that its own code handles differently."""

from __future__ import annotations

from hybridge.artifact.errors import EngineError


class OutOfDeviceMemory(EngineError):
    """The GPU (or the host, for pinned memory) has too little memory left."""
