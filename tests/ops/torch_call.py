"""Calls of the torch operators with NumPy cases."""

from __future__ import annotations

import numpy as np
import torch

from hybridge.trt_plugins import torch_ops
from tests.ops.oracle import Case


def tensors(case: Case, dtypes: dict[str, str]) -> list[torch.Tensor | None]:
    """The case's inputs in declared order and in the given types."""
    names = [*dtypes, "context_lengths"]
    arrays = [getattr(case, name) for name in names]
    return [
        None if array is None else torch.from_numpy(array).to(getattr(torch, dtypes.get(name, "int32")))
        for name, array in zip(names, arrays, strict=True)
    ]


def run_conv(inputs: list[torch.Tensor | None], activation: str = "silu") -> tuple[torch.Tensor, torch.Tensor]:
    torch_ops.register()
    return torch.ops.trt_edgellm.causal_conv1d(*inputs, activation)


def run_ssm(
    inputs: list[torch.Tensor | None],
    dt_softplus: int = 1,
    time_step_min: float = 0.0,
    time_step_max: float = float("inf"),
    chunk_size: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    torch_ops.register()
    attributes = (dt_softplus, time_step_min, time_step_max, chunk_size)
    return torch.ops.trt_edgellm.update_ssm_state(*inputs, *attributes)


def run_scan(
    inputs: list[torch.Tensor | None],
    dt_softplus: int = 1,
    time_step_min: float = 0.0,
    time_step_max: float = float("inf"),
) -> tuple[torch.Tensor, torch.Tensor]:
    torch_ops.register()
    return torch.ops.trt_edgellm.selective_scan(*inputs, dt_softplus, time_step_min, time_step_max)


def run_delta(
    inputs: list[torch.Tensor | None],
    decay: str = "head",
    use_qk_l2norm: int = 1,
    scale: float = 0.0,
    chunk_size: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    torch_ops.register()
    return torch.ops.trt_edgellm.gated_delta_rule(*inputs, decay, use_qk_l2norm, scale, chunk_size)


def as_float64(tensor: torch.Tensor) -> np.ndarray:
    return tensor.to(torch.float64).numpy()
