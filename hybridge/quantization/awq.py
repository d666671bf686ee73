"""Scales of inputs by their activations, so that the features that matter are rounded finer (AWQ, arXiv 2306.00978)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.rounding.blocks import float32_rows, in_threads
from hybridge.quantization.calibration import Calibration
from hybridge.quantization.folding import folded, merged, storable_scales
from hybridge.quantization.input_products import InputProducts, Products
from hybridge.quantization.input_scaling import ScalableInput
from hybridge.quantization.scaled import TensorScale
from hybridge.quantization.scheme import MatrixContext, Scheme

# Exponents of the features' magnitudes that are tried.
_EXPONENTS = tuple(float(each) for each in np.linspace(0.05, 1, 20))
# Rows of each matrix that the error of its products is computed for, and about the most weights of them.
_ROWS, _SAMPLE = 256, 1 << 20
# Smaller magnitudes count as this part of the largest one.
_LEAST = 1e-4


class ScaleSearch:
    """Finds the scales of inputs; ``schemes`` are those of the quantised modules, ``scale`` is the type of scales."""

    def __init__(self, tensors: Mapping[str, TensorSlot], schemes: Mapping[str, Scheme], scale: DType) -> None:
        self._tensors, self._schemes, self._scale = tensors, schemes, scale

    def scales(self, inputs: Iterable[ScalableInput], products: InputProducts) -> dict[str, TensorScale]:
        """Tensor to scale, for those ``inputs`` of one layer for which scales lower the error of the products."""
        found: dict[str, TensorScale] = {}
        for group in inputs:
            own = next((p for name in group.consumers if (p := products.of(_module(name))) is not None), None)
            scales = None if own is None else self._best(group, own)
            if scales is not None:
                found = merged(found, folded(group, scales))
        return found

    def _best(self, group: ScalableInput, products: Products) -> np.ndarray | None:
        """Scales [rows of the producer] of the least error; None: no scales are better."""
        readers = [self._sampled(name) for name in group.consumers if _module(name) in self._schemes]
        if not readers:
            return None
        producer = self._tensors[group.producer]
        trials = [self._stored(group, producer, each) for each in _trial_scales(group, producer, products, readers)]
        sums = products.sums

        def error(scales: np.ndarray, search: bool = False) -> float:
            columns = scales[group.positions]
            found = sum(self._error(scheme, weights, columns, sums, search) for scheme, weights in readers)
            return found if np.isfinite(found) else np.inf

        best = trials[int(np.argmin(list(in_threads(error, trials))))]
        # Compared as the weights are written: with scales of groups that are searched, the method mse may be better.
        return best if error(best, search=True) < error(np.ones(producer.shape[0]), search=True) else None

    def _stored(self, group: ScalableInput, producer: TensorSlot, scales: np.ndarray) -> np.ndarray:
        """Powers of two where a tensor that is not quantised is multiplied, which then stays exact; as stored."""
        others = [*group.consumers, *([] if group.bias is None else [group.bias])]
        if len(producer.shape) == 2:
            others.append(group.producer)
        if any(_module(name) not in self._schemes for name in others):
            exponents = np.rint(np.log2(scales) / group.power) * group.power
            scales = 2.0**exponents
        return storable_scales(group, producer, scales)

    def _sampled(self, name: str) -> tuple[Scheme, np.ndarray]:
        slot = self._tensors[name]
        count = min(_ROWS, max(1, _SAMPLE // slot.shape[1]))
        rows = float32_rows(slot, slice(0, None, max(1, slot.shape[0] // count)))
        return self._schemes[_module(name)], rows

    def _error(self, scheme: Scheme, weights: np.ndarray, columns: np.ndarray, sums: Any, search: bool) -> float:
        """The squared error of the products of ``weights`` with all inputs, where ``columns`` are scaled."""
        factors = columns.astype(np.float32)
        scaled = weights * factors
        context = MatrixContext(self._scale, search, peak=float(np.abs(scaled).max(initial=0)))
        difference = scheme.rows(scaled, context).products / factors - weights
        torch_difference = sums.new_tensor(difference)
        return float((torch_difference @ sums).mul_(torch_difference).sum(dtype=torch_difference.double().dtype))


def scales_of_layers(
    tensors: Mapping[str, TensorSlot],
    schemes: Mapping[str, Scheme],
    scale: DType,
    inputs: Sequence[ScalableInput],
    calibration: Calibration,
) -> dict[str, TensorScale]:
    """Tensor to scale in all layers with ``inputs``; ``calibration`` is back at the first layer afterwards."""
    search, found = ScaleSearch(tensors, schemes, scale), dict[str, TensorScale]()
    for layer in sorted({each.layer for each in inputs}):
        own = [each for each in inputs if each.layer == layer]
        names = [_module(name) for each in own for name in each.consumers]
        found = merged(found, search.scales(own, calibration.products(layer, names)))
    calibration.restart()
    return found


def _trial_scales(
    group: ScalableInput, producer: TensorSlot, products: Products, readers: list[tuple[Scheme, np.ndarray]]
) -> Iterator[np.ndarray]:
    """Scales to try: magnitudes of inputs to a power, alone and divided by those of weights to the rest of 1."""
    size = producer.shape[0]
    counts = np.bincount(group.positions, minlength=size)
    used = counts > 0
    inputs = np.sqrt(np.bincount(group.positions, products.mean_squares(), size)[used] / counts[used])
    columns = sum(np.square(_relative(weights, scheme)).mean(0, dtype=np.float64) for scheme, weights in readers)
    weights = np.sqrt(np.bincount(group.positions, columns, size)[used] / counts[used])
    inputs, weights = (np.maximum(each, _LEAST * each.max()) for each in (inputs, weights))
    if not weights.all():
        return
    for exponent in _EXPONENTS:
        for values in (inputs**exponent, inputs**exponent / weights ** (1 - exponent)):
            scales = np.ones(size)
            scales[used] = values / np.sqrt(values.max() * values.min())
            yield scales


def _relative(weights: np.ndarray, scheme: Scheme) -> np.ndarray:
    """The magnitudes of weights, in parts of the largest one of their group."""
    group = getattr(scheme, "group", None) or weights.shape[1]
    groups = np.abs(weights).reshape(len(weights), -1, group)
    largest = groups.max(2, keepdims=True)
    return (groups / np.where(largest == 0, 1, largest)).reshape(weights.shape)


def _module(name: str) -> str:
    return name.removesuffix(".weight")
