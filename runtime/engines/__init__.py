"""Inference engines behind one interface."""

import os

# ONNX Runtime reads this when it is imported: without it, it writes a device id into the user's cache folder and sends
# events to its makers. A user who has set the variable has chosen.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from hybridge.runtime.engines.dense import DenseEngine
from hybridge.runtime.engines.factory import ENGINES, create_dense_engine

__all__ = ["ENGINES", "DenseEngine", "create_dense_engine"]
