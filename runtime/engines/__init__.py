"""Inference engines behind one interface."""

from runtime.engines.base import Engine
from runtime.engines.factory import ENGINES, create_engine

__all__ = ["ENGINES", "Engine", "create_engine"]
