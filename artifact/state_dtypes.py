"""Types of recurrent states in 8 bits: rows of numbers times one float32 each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hybridge.artifact.dtypes import DType
from hybridge.artifact.kv_dtypes import E4M3_BYTES, FP8_E4M3

STATES_8BIT: Mapping[str, DType] = MappingProxyType({"int8": DType.INT8, FP8_E4M3: E4M3_BYTES})
"""Name on the command line and in config.json to the type of the tensors; e4m3 as bytes, as in KV caches."""
LARGEST: Mapping[DType, float] = MappingProxyType({DType.INT8: 127.0, E4M3_BYTES: 448.0})
"""The magnitude that the largest number of a row is stored as."""


def has_state_scales(dtype: DType) -> bool:
    """Whether a state whose tensor is of type ``dtype`` has scales in another tensor."""
    return dtype in LARGEST


def state_dtype_name(dtype: DType) -> str:
    """The name of states whose tensors are of type ``dtype``."""
    return next((name for name, own in STATES_8BIT.items() if own is dtype), dtype.value)


def state_dtype_from_name(name: str) -> DType:
    """The type of the tensors of states called ``name``, also in short; UnsupportedError for an unknown name."""
    return STATES_8BIT[name] if name in STATES_8BIT else DType.named(name)
