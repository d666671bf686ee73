"""GPTQ's rounding in torch, for GPUs: the same steps as exporter.rounding.rounding in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hybridge.exporter.rounding.rounding import COLUMNS, Levels, Storable


def gptq_rounded_in_torch(
    weights: np.ndarray, group: int, levels: Levels, storable: Storable, parts: Sequence[float], factor: Any
) -> tuple[np.ndarray, np.ndarray]:
    """As ``gptq_rounded``, computed where the tensor ``factor`` is; only the order of sums differs."""
    left = torch.from_numpy(weights).to(factor.device, copy=True)
    columns = left.shape[1]
    numbers, scales = torch.empty_like(left), left.new_empty(len(left), columns // group)
    step = group if group < columns else min(columns, COLUMNS)
    if group == columns:
        scales = _scales(left, levels, storable, parts)
    for start in range(0, columns, step):
        stop = min(start + step, columns)
        block = left[:, start:stop]
        if group < columns:
            scales[:, start // group] = _scales(block, levels, storable, parts)[:, 0]
        scale = scales[:, start // group]
        errors = torch.empty_like(block)
        for column in range(stop - start):
            row = factor[start + column, start:stop]
            numbers[:, start + column] = _nearest(levels, block[:, column] / scale)
            errors[:, column] = (block[:, column] - numbers[:, start + column] * scale) / row[column]
            block[:, column + 1 :] -= errors[:, column, None] * row[column + 1 :]
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    return numbers.cpu().numpy(), scales.cpu().numpy()


def _scales(weights: torch.Tensor, levels: Levels, storable: Storable, parts: Sequence[float]) -> torch.Tensor:
    """The scale of each row [rows, 1], as ``rounded`` finds it for a group."""
    largest = weights.abs().amax(1, keepdim=True) / levels.peak
    largest[largest == 0] = 1
    best = _stored(largest, storable)
    least = _error(weights, best, levels)
    for part in parts:
        tried = _stored(largest * part, storable)
        error = _error(weights, tried, levels)
        better = error < least
        best, least = torch.where(better, tried, best), torch.where(better, error, least)
    return best


def _stored(scales: torch.Tensor, storable: Storable) -> torch.Tensor:
    return torch.from_numpy(storable(scales.cpu().numpy())).to(scales.device)


def _error(weights: torch.Tensor, scales: torch.Tensor, levels: Levels) -> torch.Tensor:
    return (_nearest(levels, weights / scales) * scales - weights).square().sum(1, keepdim=True)


def _nearest(levels: Levels, numbers: torch.Tensor) -> torch.Tensor:
    """As ``Levels.nearest``."""
    if levels.digits is None:
        return numbers.round().clamp(levels.low, levels.high)
    exponents = torch.frexp(numbers).exponent - 1
    steps = torch.ldexp(torch.ones_like(numbers), exponents.clamp(min=levels.least) - levels.digits)
    return (numbers / steps).round().mul(steps).clamp(levels.low, levels.high)
