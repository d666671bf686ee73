"""The constants of a network, mapped from the file that its description names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hybridge.artifact.dtypes import DType
from hybridge.artifact.mapped_file import map_inside
from hybridge.runtime.engines.tensorrt_network.element_types import torch_type
from hybridge.trt_plugins.network.description import NetworkDescription, NetworkTensor

_FOUR_BITS = (DType.INT4, DType.FLOAT4E2M1)


def load_constants(description: NetworkDescription, file: Path, widen: bool) -> dict[str, Tensor]:
    """The constants by tensor name, in the types of ``element_types``. The file may be deleted afterwards."""
    content = memoryview(b"")
    nbytes = max((offset + length for offset, length in description.constants.values()), default=0)
    if nbytes:
        # Writable, as torch requires; writes never reach the file.
        content = map_inside(file.parent, file.name, 0, nbytes, copy_on_write=True).data
    return {
        name: _constant(description.tensors[name], content[offset : offset + length], widen)
        for name, (offset, length) in description.constants.items()
    }


def _constant(tensor: NetworkTensor, content: memoryview, widen: bool) -> Tensor:
    dtype = torch_type(tensor.dtype, widen)
    if not content:
        return torch.empty(tensor.shape, dtype=dtype)
    if tensor.dtype in _FOUR_BITS:
        return _four_bits(tensor, content)
    return torch.frombuffer(content, dtype=torch_type(tensor.dtype)).reshape(tensor.shape).to(dtype)


def _four_bits(tensor: NetworkTensor, content: memoryview) -> Tensor:
    """The two 4-bit numbers of each byte, the one in the low half first."""
    pairs = np.frombuffer(content, np.uint8)
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(-1)[: int(np.prod(tensor.shape))]
    numbers = codes.view(tensor.dtype.numpy).astype(np.int8 if tensor.dtype is DType.INT4 else np.float32)
    return torch.from_numpy(numbers.reshape(tensor.shape))
