"""Shared parts of the declarations."""

from __future__ import annotations

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.spec import TensorSpec

DATA_TYPE = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
"""Types of activations, weights and states."""

CONTEXT_LENGTHS = TensorSpec(
    "context_lengths",
    DType.INT32,
    ("batch",),
    "valid tokens of each row, clamped to 0..time (without a token axis: to 0..1); a row with 0 keeps its state bit "
    "for bit",
)
