"""FILL: numbers that depend only on their position."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.runtime.engines.tensorrt_network.layer_call import LayerCall


def fill(call: LayerCall) -> Tensor:
    """LINSPACE: alpha, plus beta for each step along an axis; inputs 0 to 2 are the shape, alpha and beta."""
    call.expect("operation", "LINSPACE")
    shape = call.sizes(0, "shape")
    if shape is None or min(shape, default=0) < 0:
        raise call.error(f"expected a shape, found {shape}")
    dtype = call.dtypes[0]
    alpha, beta = (_number(call, index, name, dtype) for index, name in ((1, "alpha"), (2, "beta")))
    found = alpha.reshape(()).expand(shape)
    steps = beta.reshape(-1)
    if steps.numel() not in (1, len(shape)):
        raise call.error(f"expected a step for each of {len(shape)} axes, found {steps.numel()}")
    for axis, size in enumerate(shape):
        offsets = torch.arange(size, device=found.device).to(dtype)
        own = [-1 if index == axis else 1 for index in range(len(shape))]
        found = found + (offsets * steps[axis if steps.numel() > 1 else 0]).reshape(own)
    return found


def _number(call: LayerCall, index: int, name: str, dtype: torch.dtype) -> Tensor:
    value = call.optional(index)
    return torch.tensor(call[name], dtype=dtype) if value is None else value
