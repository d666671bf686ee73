"""Pearson's chi-square test of samples."""

from __future__ import annotations

import numpy as np


def chi_square_fits(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Whether ``counts`` [n] stay below the 1 - 1e-6 quantile (Wilson-Hilferty approximation) of ``expected`` [n].

    A cell of expected count 0 must be empty. Cells with fewer than 5 expected samples are joined into one.
    """
    if counts[expected == 0].sum():
        return False
    large = expected >= 5
    observed = np.append(counts[large], counts[~large].sum())
    means = np.append(expected[large], expected[~large].sum())
    observed, means = observed[means > 0], means[means > 0]
    if means.size == 1:
        return True
    freedom = means.size - 1
    quantile = freedom * (1 - 2 / (9 * freedom) + 4.75 * np.sqrt(2 / (9 * freedom))) ** 3
    return bool(((observed - means) ** 2 / means).sum() < quantile)
