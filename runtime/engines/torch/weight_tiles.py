"""Weights of 4 or 8 bits as the tiles that ``linear_decode`` reads (plugin_src/linear_decode/tile.cuh)."""

from __future__ import annotations

import torch

from hybridge.trt_plugins.kernels.fused.weight_tiles import TILE_ROWS, WeightFormat

_LANES_OF_A_ROW = 4


def tiles_from_codes(
    weight: WeightFormat, codes: torch.Tensor, scales: torch.Tensor, tensor_scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tiles (uint8, ``weight.tiles_shape``) and the factors [outputs] in float32 of a weight [outputs, inputs].

    codes: uint8 [outputs, inputs * bits / 8], of 4 bits the first one lowest. scales: [outputs, inputs / group], e4m3
    where the format has byte_scales; without groups [outputs] or one number. tensor_scale: a factor of all. Scales of
    groups are rounded to ``weight.dtype``, beside the power of two that is the row's factor.
    """
    outputs, inputs = codes.shape[0], codes.shape[1] * 8 // weight.bits
    size, shape = weight.tile_inputs(inputs), weight.tiles_shape(outputs, inputs)
    if weight.byte_scales:
        # The kernel reads their absolute values: signs go to the codes.
        signs = scales.view(torch.uint8) & 128
        codes = codes ^ (signs | signs >> 4).repeat_interleave(weight.group * weight.bits // 8, 1)
        scales = (scales.view(torch.uint8) & 127).view(scales.dtype)
    tiled = _tiled(codes, shape, size * weight.bits // 8)
    # Chunks of 32 inputs before rows.
    parts = [tiled.unflatten(3, (-1, _LANES_OF_A_ROW * weight.bits)).transpose(2, 3)]
    factors = torch.ones(outputs, device=codes.device)
    if weight.group == 0:
        factors *= scales.float()
    else:
        if not weight.byte_scales:
            factors = torch.ldexp(factors, torch.frexp(scales.float().abs().amax(1)).exponent.clamp(-126, 127))
            scales = scales.float() / factors[:, None] * 2.0**weight.scale_exponent
            scales = scales.to(getattr(torch, weight.dtype.value))
        stored = _tiled(scales.view(torch.uint8), shape, size // weight.group * scales.itemsize)
        parts.append(stored.unflatten(3, (-1, scales.itemsize)).transpose(2, 3))
    if tensor_scale is not None:
        factors *= tensor_scale.float()
    return torch.cat([part.flatten(2) for part in parts], 2), factors


def _tiled(rows: torch.Tensor, shape: tuple[int, int, int], width: int) -> torch.Tensor:
    """Bytes [outputs, columns] as [slices of inputs, groups of outputs, 8, width], with zeros at the ends."""
    slices, groups, _ = shape
    padded = rows.new_zeros(groups * TILE_ROWS, slices * width)
    padded[: rows.shape[0], : rows.shape[1]] = rows
    return padded.view(groups, TILE_ROWS, slices, width).permute(2, 0, 1, 3)
