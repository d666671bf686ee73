"""Random weights of 4 and 8 bits, and the numbers that they stand for in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hybridge.trt_plugins.kernels.fused.weight_tiles import WeightFormat

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_LARGEST = {"int4": 8.0, "e2m1": 6.0, "int8": 128.0, "e4m3": 448.0}


@dataclass(frozen=True)
class Weight:
    """codes, scales, tensor_scale: as ``tiles_from_codes`` takes them. matrix: [outputs, inputs] in float64."""

    codes: torch.Tensor
    scales: torch.Tensor
    tensor_scale: torch.Tensor | None
    matrix: torch.Tensor


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
    matrix = numbers(form, codes) * _wide(form, scales.double())
    return Weight(codes, scales, tensor_scale, matrix if tensor_scale is None else matrix * tensor_scale.double())


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
    codes = tiles[..., : size * form.bits].reshape(slices, groups, size // 32, 8, 4 * form.bits)
    rows = codes.permute(1, 3, 0, 2, 4).reshape(groups * 8, -1)[:outputs]
    matrix = numbers(form, rows)[:, :inputs] * factors.double()[:, None]
    if form.group:
        stored = tiles[..., size * form.bits :].contiguous()
        stored = stored.view(torch.float8_e4m3fn if form.byte_scales else getattr(torch, form.dtype.value))
        scales = stored.reshape(slices, groups, size // form.group, 8).permute(1, 3, 0, 2).reshape(groups * 8, -1)
        matrix *= (scales.double() * 2.0**-form.scale_exponent).repeat_interleave(form.group, 1)[:outputs, :inputs]
    return matrix


def _wide(form: WeightFormat, scales: torch.Tensor) -> torch.Tensor:
    return scales.reshape(-1, 1) if form.group == 0 else scales.repeat_interleave(form.group, 1)
