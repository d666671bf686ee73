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
    first: torch.Tensor | float = 0.0
    if group == columns:
        scales, first = _scales(left, levels, storable, parts)
    for start in range(0, columns, step):
        stop = min(start + step, columns)
        block = left[:, start:stop]
        if group < columns:
            found, first = _scales(block, levels, storable, parts)
            scales[:, start // group] = found[:, 0]
        scale = scales[:, start // group]
        errors = torch.empty_like(block)
        for column in range(stop - start):
            row = factor[start + column, start:stop]
            numbers[:, start + column] = _nearest(levels, block[:, column, None] / scale[:, None], first)[:, 0]
            errors[:, column] = (block[:, column] - numbers[:, start + column] * scale) / row[column]
            block[:, column + 1 :] -= errors[:, column, None] * row[column + 1 :]
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    return numbers.cpu().numpy(), scales.cpu().numpy()


def _scales(
    weights: torch.Tensor, levels: Levels, storable: Storable, parts: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor | float]:
    """The scale of each row [rows, 1], and where shifted integers begin, as ``rounded`` finds them for a group."""
    peak = torch.tensor(levels.peak, dtype=weights.dtype, device=weights.device)
    high, low = weights.amax(1, keepdim=True), weights.amin(1, keepdim=True)
    if levels.shifted:
        high, low = high.clamp(min=0), low.clamp(max=0)
        largest = high / peak - low / peak
    else:
        largest = torch.maximum(high, -low) / peak
    largest[largest == 0] = 1
    middle = high / 2 + low / 2
    best = _stored(largest, storable)
    first = _first(middle, best, levels)
    least = _error(weights, best, levels, first)
    for part in parts:
        tried = _stored(largest * part, storable)
        begin = _first(middle, tried, levels)
        error = _error(weights, tried, levels, begin)
        better = error < least
        best, least = torch.where(better, tried, best), torch.where(better, error, least)
        first = torch.where(better, begin, first)
    return best, first if levels.shifted else 0.0


def _first(middle: torch.Tensor, scales: torch.Tensor, levels: Levels) -> torch.Tensor:
    """Where integers begin; zeros if they are not shifted."""
    if not levels.shifted:
        return torch.zeros_like(scales)
    return (middle / scales - levels.peak / 2).round().clamp(-levels.high, 0)


def _stored(scales: torch.Tensor, storable: Storable) -> torch.Tensor:
    return torch.from_numpy(storable(scales.cpu().numpy())).to(scales.device)


def _error(weights: torch.Tensor, scales: torch.Tensor, levels: Levels, first: torch.Tensor) -> torch.Tensor:
    return (_nearest(levels, weights / scales, first) * scales - weights).square().sum(1, keepdim=True)


def _nearest(levels: Levels, numbers: torch.Tensor, first: torch.Tensor | float) -> torch.Tensor:
    """As ``Levels.nearest``; first: [rows, 1]."""
    if levels.digits is None:
        whole = numbers.round()
        if isinstance(first, float):
            return whole.clamp(levels.low, levels.high)
        return torch.minimum(torch.maximum(whole, first + levels.low), first + levels.high)
    exponents = torch.frexp(numbers).exponent - 1
    steps = torch.ldexp(torch.ones_like(numbers), exponents.clamp(min=levels.least) - levels.digits)
    return (numbers / steps).round().mul(steps).clamp(levels.low, levels.high)
