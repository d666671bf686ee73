"""States in 8 bits are what the reference makes of them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from hybridge.runtime.engines.packed_rows import FP8, INT8, packed_rows
from hybridge.trt_plugins.reference.quantized_state import exact_state, quantized_state

TYPES = {INT8: torch.int8, FP8: torch.float8_e4m3fn}


@pytest.mark.parametrize("kind", [INT8, FP8])
def test_rows_are_those_of_the_reference(kind: str) -> None:
    rng = np.random.default_rng(3)
    state = (rng.standard_normal((3, 5, 17)) * 10.0 ** rng.integers(-6, 4, (3, 5, 1))).astype(np.float32)
    state[1, 2] = 0
    values, factors = quantized_state(torch.from_numpy(state), TYPES[kind])
    found = packed_rows(state, kind)
    assert found.values.view(np.uint8).tolist() == values.view(torch.uint8).tolist()
    assert found.factors.tolist() == factors.tolist()
    exact = exact_state(values, factors).numpy()
    assert np.abs(found.unpacked() - exact).max() <= 1e-6 * np.abs(exact).max()
    assert found.nbytes == 3 * 5 * (17 + 4) and found.unpacked().dtype == np.float32
    again = packed_rows(found.unpacked(), kind)
    assert again.values.view(np.uint8).tolist() == found.values.view(np.uint8).tolist(), "packing twice loses nothing"


@pytest.mark.parametrize(("kind", "most"), [(INT8, 0.01), (FP8, 0.04)])
def test_a_16_bit_state_comes_back_in_16_bits(kind: str, most: float) -> None:
    state = np.random.default_rng(4).standard_normal((2, 64)).astype(ml_dtypes.bfloat16)
    back = packed_rows(state, kind).unpacked()
    exact = state.astype(np.float64)
    assert back.dtype == state.dtype
    assert 0 < np.linalg.norm(back.astype(np.float64) - exact) <= most * np.linalg.norm(exact)
