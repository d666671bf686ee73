"""Activations over [-100, 100] against float64."""

from __future__ import annotations

from collections.abc import Callable
from math import erfc, pi, sqrt

import numpy as np

X = np.linspace(-100.0, 100.0, 20_000, dtype=np.float32)
LIMIT = 1e-5
"""Largest relative error where the result is above SMALLEST."""
SMALLEST, LARGEST = 1e-30, 1e38
_erfc = np.vectorize(erfc)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "gelu": lambda x: 0.5 * x * _erfc(-x * sqrt(0.5)),
    "gelu_pytorch_tanh": lambda x: x * _sigmoid(2.0 * sqrt(2.0 / pi) * (x + 0.044715 * x**3)),
    "relu": lambda x: np.maximum(x, 0.0),
    "relu2": lambda x: np.maximum(x, 0.0) ** 2,
    "exp": np.exp,
    "tanh": np.tanh,
    "erf": lambda x: -np.copysign(_erfc(np.abs(x)) - 1.0, -x),
}
"""The activations in float64, in forms that do not cancel."""


def worst_error(found: np.ndarray, name: str) -> float:
    """The largest relative error of ``found``, activation ``name`` of X."""
    with np.errstate(over="ignore"):
        exact = EXACT[name](X.astype(np.float64))
    shown = (np.abs(exact) > SMALLEST) & (np.abs(exact) < LARGEST)
    errors = np.abs(found.astype(np.float64).ravel() - exact)[shown] / np.abs(exact)[shown]
    return float(errors.max()) if np.isfinite(errors).all() else np.inf
