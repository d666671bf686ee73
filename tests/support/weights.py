"""Random weights of 4 and 8 bits, and the numbers that they stand for in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hybridge.runtime.engines.torch.weight_tiles import tiles_from_codes
from hybridge.trt_plugins.kernels.fused.weight_tiles import WeightFormat

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_LARGEST = {"int4": 8.0, "e2m1": 6.0, "int8": 128.0, "e4m3": 448.0}


@dataclass(frozen=True)
class Weight:
    """codes to zero_points: as ``tiles_from_codes`` takes them. matrix: [outputs, inputs] in float64."""

    form: WeightFormat
    codes: torch.Tensor
    scales: torch.Tensor
    tensor_scale: torch.Tensor | None
    zero_points: torch.Tensor | None
    matrix: torch.Tensor

    def tiles(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Tiles and factors of it."""
        return tiles_from_codes(self.form, self.codes, self.scales, self.tensor_scale, self.zero_points)


def random_weight(form: WeightFormat, outputs: int, inputs: int, size: float = 1.0, device: str = "cuda") -> Weight:
    """Every code, scales over three binary orders of magnitude; products with normal x are of about ``size``."""
    generator = torch.Generator(device).manual_seed(outputs + inputs)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    codes = (uniform(outputs, inputs * form.bits // 8) * 256).to(torch.uint8)
    if form.code == "e4m3":
        codes[(codes & 0x7F) == 0x7F] = 0  # NaN
    unit = size * inputs**-0.5 / _LARGEST[form.code]
    tensor_scale = None
    if form.group == 0:
        scales = unit * (1 + 7 * uniform(outputs))
    elif form.byte_scales:
        scales = (uniform(outputs, inputs // form.group) ** 4 * 448).to(torch.float8_e4m3fn)
        tensor_scale = torch.tensor(unit / 64, device=device)
    else:
        scales = (unit * (1 + 7 * uniform(outputs, inputs // form.group))).to(getattr(torch, form.dtype.value))
    matrix, zero_points = numbers(form, codes), None
    if form.zero_points:
        lowest, count = (-8, 16) if form.bits == 4 else (-128, 256)
        zero_points = (uniform(outputs, inputs // form.group) * count).to(torch.int16).add_(lowest).to(torch.int8)
        matrix = matrix - _wide(form, zero_points.double())
    matrix = matrix * _wide(form, scales.double())
    matrix = matrix if tensor_scale is None else matrix * tensor_scale.double()
    return Weight(form, codes, scales, tensor_scale, zero_points, matrix)


def numbers(form: WeightFormat, codes: torch.Tensor) -> torch.Tensor:
    """What the codes stand for, in float64."""
    if form.code == "int8":
        return codes.view(torch.int8).double()
    if form.code == "e4m3":
        return codes.view(torch.float8_e4m3fn).double()
    nibbles = torch.stack((codes & 15, codes >> 4), -1).flatten(1).long()
    if form.code == "int4":
        return ((nibbles ^ 8) - 8).double()
    table = torch.tensor((*_E2M1, *(-number for number in _E2M1)), dtype=torch.float64, device=codes.device)
    return table[nibbles]


def matrix_from_tiles(
    form: WeightFormat, tiles: torch.Tensor, factors: torch.Tensor, outputs: int, inputs: int
) -> torch.Tensor:
    """The numbers [outputs, inputs] that tiles and factors hold, in float64."""
    size, (slices, groups, _) = form.tile_inputs(inputs), tiles.shape
    vector = form.vector(inputs)
    codes = tiles[..., : size * form.bits].reshape(slices, groups, -1, 8, 4, vector, form.bits)
    rows = codes.permute(1, 3, 0, 2, 5, 4, 6).reshape(groups * 8, -1, form.bits)[:outputs]
    order = [0, 4, 1, 5, 2, 6, 3, 7] if form.bits == 4 else [0, 2, 1, 3, 4, 6, 5, 7]
    matrix = numbers(form, rows.flatten(1)).unflatten(1, (-1, 8))[..., order].flatten(1)[:, :inputs]
    if form.group:
        stored = tiles[..., size * form.bits :].contiguous()
        stored = stored.view(torch.float8_e4m3fn if form.byte_scales else getattr(torch, form.dtype.value))
        stored = stored.reshape(slices, groups, -1, size // form.group, 8).permute(2, 1, 4, 0, 3)
        scales, *zeros = stored.reshape(len(stored), groups * 8, -1).double().repeat_interleave(form.group, 2)
        matrix = matrix - zeros[0][:outputs, :inputs] if zeros else matrix
        matrix = matrix * (scales * 2.0**-form.scale_exponent)[:outputs, :inputs]
    return matrix * factors.double()[:, None]


def _wide(form: WeightFormat, scales: torch.Tensor) -> torch.Tensor:
    return scales.reshape(-1, 1) if form.group == 0 else scales.repeat_interleave(form.group, 1)
