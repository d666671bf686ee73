"""Hidden states of prompts, however their tokens are computed."""

from __future__ import annotations

import numpy as np
import pytest

from hybridge.artifact.errors import SettingError
from hybridge.runtime.serving.prompt_pooling import LAST, MEAN, PromptPooling
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings

ROWS = np.random.default_rng(3).normal(size=(7, 5)).astype(np.float32)


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 7)],
        [(0, 3), (3, 6), (6, 7)],
        [(0, 5), (0, 2), (2, 7)],  # the sequence lost its memory after five tokens
        [(0, 7), (7, 9)],  # and tokens of the answer
    ],
)
def test_each_token_of_the_prompt_counts_once(parts: list[tuple[int, int]]) -> None:
    rows = np.concatenate([ROWS, np.full((2, 5), np.nan, np.float32)])
    for kind, expected in ((MEAN, ROWS.astype(np.float64).mean(axis=0)), (LAST, ROWS[-1])):
        pooling = PromptPooling(kind, len(ROWS))
        for start, end in parts:
            pooling.add(start, rows[start:end])
        np.testing.assert_allclose(pooling.result, expected, rtol=1e-6)


def test_the_last_token_needs_no_others() -> None:
    pooling = PromptPooling(LAST, 7)
    pooling.add(6, ROWS[6:])
    np.testing.assert_array_equal(pooling.result, ROWS[6])
    with pytest.raises(SettingError, match="hidden_states"):
        ServingSettings(hidden_states=True, speculation=SpeculationSettings())
