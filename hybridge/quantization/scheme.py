"""How the weights of a module are stored in the format of the library compressed-tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.exporter.rounding.rounding import Levels, Storable, gptq_rounded, parts_to_try, rounded

Layout = Mapping[str, tuple[DType, tuple[int, ...]]]


@dataclass(frozen=True)
class QuantizedRows:
    """Rows of a weight. parts: rows of each stored tensor, by its name after the module's; products: the rounded
    values, [rows, columns] float32.
    """

    parts: Mapping[str, np.ndarray]
    products: np.ndarray


@dataclass(frozen=True)
class MatrixContext:
    """scale: the type of scales. search: find the scales of least squared error. peak: the largest magnitude of the
    weights that share a second scale. factor: of ``gptq_rounded``, None to round each weight by itself; a tensor on
    a GPU where that computes.
    """

    scale: DType
    search: bool
    peak: float = 0.0
    factor: Any = None

    def rounded(
        self, weights: np.ndarray, group: int, levels: Levels, storable: Storable, parts: Sequence[float] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and scales as ``rounded`` gives them; parts: to try in a search, None for the usual ones."""
        tried = parts_to_try(self.search, levels) if parts is None or not self.search else parts
        if self.factor is None:
            return rounded(weights, group, levels, storable, tried)
        if not isinstance(self.factor, np.ndarray):
            from hybridge.quantization.torch_rounding import gptq_rounded_in_torch

            return gptq_rounded_in_torch(weights, group, levels, storable, tried, self.factor)
        return gptq_rounded(weights, group, levels, storable, tried, self.factor)


class Scheme(ABC):
    """Frozen and hashable: schemes that are equal share a group of quantization_config."""

    format: ClassVar[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in reports."""

    @property
    def rows_at_once(self) -> int:
        """Rows whose parts fill whole words: blocks of rows are multiples of them."""
        return 1

    @abstractmethod
    def layout(self, rows: int, columns: int, scale: DType) -> Layout:
        """Type and shape of each tensor of a weight [rows, columns], by what follows the module's name."""

    @abstractmethod
    def rows(self, weights: np.ndarray, context: MatrixContext) -> QuantizedRows:
        """``weights`` [rows, columns], float32 and finite, quantised."""

    def whole(self, rows: int, columns: int, context: MatrixContext) -> Mapping[str, np.ndarray]:
        """The tensors that belong to the whole weight."""
        return {}

    @abstractmethod
    def weights_config(self) -> dict[str, Any]:
        """The scheme's own fields in the object "weights" of quantization_config."""
