"""Element types of the artifact in torch, and tensors as NumPy arrays of them."""

from __future__ import annotations

import numpy as np
import torch

from hybridge.artifact.dtypes import DType

# NumPy knows bfloat16 through ml_dtypes only, which torch does not take: such arrays travel as integers.
_CARRIERS = {DType.BFLOAT16: (torch.int16, np.dtype(np.int16))}


def torch_from_dtype(dtype: DType) -> torch.dtype:
    """The torch type of the same name."""
    found = torch.float8_e4m3fn if dtype is DType.FLOAT8E4M3FN else getattr(torch, dtype.value)
    assert isinstance(found, torch.dtype)
    return found


def array_from_tensor(tensor: torch.Tensor, dtype: DType) -> np.ndarray:
    """A copy of ``tensor``, whose type is ``dtype``, in host memory."""
    host = tensor.detach().cpu().contiguous()
    if dtype in _CARRIERS:
        return host.view(_CARRIERS[dtype][0]).numpy().view(dtype.numpy).copy()
    return host.numpy().copy()


def tensor_from_array(array: np.ndarray, dtype: DType) -> torch.Tensor:
    """A tensor of type ``dtype`` with a copy of ``array``, which has the NumPy type of the same name."""
    copied = np.array(array, order="C")
    if dtype in _CARRIERS:
        return torch.from_numpy(copied.view(_CARRIERS[dtype][1])).view(torch_from_dtype(dtype))
    return torch.from_numpy(copied)
