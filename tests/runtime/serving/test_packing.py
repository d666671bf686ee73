"""Consecutive copies are merged only where the result is the same."""

import numpy as np
import pytest

from hybridge.runtime.serving.executor import independent


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(0, 1), (0, 2)],
        [(0, 1), (1, 2), (2, 3)],
        [(0, 1), (2, 1)],
        [(0, 1), (2, 0), (0, 3)],
        [(0, 1), (1, 2), (0, 3), (3, 0)],
    ],
)
def test_runs_of_copies_equal_copies_in_order(pairs):
    expected, found = list(range(5)), np.arange(5)
    for source, target in pairs:
        expected[target] = expected[source]
    for sources, targets in independent(pairs):
        assert not set(sources) & set(targets) and len(set(targets)) == len(targets)
        found[targets] = found[sources]
    assert found.tolist() == expected
