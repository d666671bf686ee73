"""Inference engines behind one interface."""

from hybridge.runtime.engines.base import Engine
from hybridge.runtime.engines.factory import ENGINES, create_engine

__all__ = ["ENGINES", "Engine", "create_engine"]
