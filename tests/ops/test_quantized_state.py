"""A state of 8 bits is the nearest that its type can say, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the export extra (torch)")
from hybridge.artifact.errors import UnsupportedError  # noqa: E402 (needs torch)
from hybridge.trt_plugins.reference.quantized_state import LARGEST, exact_state, quantized_state  # noqa: E402


def numbers_of(dtype: Any) -> np.ndarray:
    """Every finite number of a type, from the definition of the type."""
    if dtype is torch.int8:
        return np.arange(-127, 128, dtype=np.float64)
    exponent, mantissa = np.meshgrid(np.arange(16), np.arange(8), indexing="ij")
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    finite = values.ravel()[:-1]
    return np.concatenate([-finite, finite])


@pytest.mark.parametrize("dtype", list(LARGEST), ids=str)
@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
def test_every_element_is_the_nearest_number_of_its_row(dtype: Any, wide: Any) -> None:
    state = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 5, 40))).to(wide)
    values, scale = quantized_state(state, dtype)
    assert (values.dtype, scale.dtype, scale.shape) == (dtype, torch.float32, (3, 5))
    exact, unit = state.double().numpy(), scale.double().numpy()[..., None, None]
    nearest = np.abs(exact[..., None] - numbers_of(dtype) * unit).min(-1)
    found = np.abs(exact_state(values, scale).numpy() - exact)
    assert (found <= nearest + 1e-6 * unit[..., 0]).all()
    assert (values.double().abs().amax(-1) == LARGEST[dtype]).all()


@pytest.mark.parametrize("dtype", list(LARGEST), ids=str)
def test_a_row_of_zeros_is_zero(dtype: Any) -> None:
    values, scale = quantized_state(torch.zeros(2, 8), dtype)
    assert not exact_state(values, scale).any() and not scale.any()


def test_other_types_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"expected a state of .*float8_e4m3fn, found torch.float16"):
        quantized_state(torch.zeros(2, 8), torch.float16)
