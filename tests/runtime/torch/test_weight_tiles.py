"""Where codes and scales lie in tiles; needs no GPU."""

from __future__ import annotations

import pytest
import torch

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.torch.weight_tiles import tiles_from_codes
from hybridge.trt_plugins.kernels.fused.weight_tiles import TILE_ROWS, WeightFormat, formats
from tests.support.weights import matrix_from_tiles, random_weight


@pytest.mark.parametrize("form", formats(), ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(9, 640), (1, 128), (17, 4224)])
def test_tiles_hold_the_weight_and_else_zeros(form, outputs, inputs):
    weight = random_weight(form, outputs, inputs, device="cpu")
    tiles, factors = weight.tiles()
    assert tuple(tiles.shape) == form.tiles_shape(outputs, inputs)
    assert torch.equal(matrix_from_tiles(form, tiles, factors, outputs, inputs), weight.matrix)
    slices, groups, _ = tiles.shape
    more = torch.ones(groups * TILE_ROWS)
    padded = matrix_from_tiles(form, tiles, more, groups * TILE_ROWS, slices * form.tile_inputs(inputs))
    assert not padded[outputs:].any() and not padded[:, inputs:].any()


def test_scales_of_any_size_are_numbers_of_about_1():
    form = next(formats())
    for size in (1e-38, 1.0, 1e38):
        scales = torch.full((8, 1), size, dtype=torch.float32)
        tiles, factors = tiles_from_codes(form, torch.zeros(8, 64, dtype=torch.uint8), scales)
        stored = tiles[0, 0, -16:].view(torch.bfloat16).double()
        assert ((stored >= 0.5) & (stored <= 1)).all()
        assert torch.allclose(stored * factors.double(), scales[:, 0].double(), rtol=2**-8, atol=0)


def test_signs_of_e4m3_scales_go_to_the_codes():
    form = WeightFormat("e2m1", DType.BFLOAT16, 16, byte_scales=True)
    weight = random_weight(form, 8, 32, device="cpu")
    scales = weight.scales.clone()
    scales.view(torch.uint8)[3, 1] |= 128
    flipped = weight.codes.clone()
    flipped[3, 8:] ^= 0x88
    expected, _ = tiles_from_codes(form, flipped, weight.scales, weight.tensor_scale)
    assert torch.equal(tiles_from_codes(form, weight.codes, scales, weight.tensor_scale)[0], expected)


def test_rows_of_zero_scales_are_zeros():
    form = next(formats())
    tiles, factors = tiles_from_codes(form, torch.zeros(8, 64, dtype=torch.uint8), torch.zeros(8, 1))
    assert not tiles.any() and factors.isfinite().all()
