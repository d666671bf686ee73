"""The header of a new safetensors file."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping

from hybridge.artifact.dtypes import DType

# The data section starts at a multiple of this.
ALIGNMENT = 64


def safetensors_header(tensors: Mapping[str, tuple[DType, tuple[int, ...]]]) -> bytes:
    """The bytes before the data of ``tensors`` (name -> type, shape), which follow each other in that order."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape) in tensors.items():
        end = position + dtype.nbytes(math.prod(shape))
        entries[name] = {"dtype": dtype.safetensors, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
