"""Weights of 4 or 8 bits as the tiles that ``linear_decode`` reads (plugin_src/linear_decode/tile.cuh)."""

from __future__ import annotations

import torch

from hybridge.runtime.engines.torch.kernels import KernelRunner
from hybridge.trt_plugins.kernels.fused.weight_tiles import TILE_ROWS, UnpackTiles, WeightFormat, unpack_plan

_LANES_OF_A_ROW = 4


def tiles_from_codes(
    weight: WeightFormat,
    codes: torch.Tensor,
    scales: torch.Tensor,
    tensor_scale: torch.Tensor | None = None,
    zero_points: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tiles (uint8, ``weight.tiles_shape``) and the factors [outputs] in float32 of a weight [outputs, inputs].

    codes: uint8 [outputs, inputs * bits / 8]; of two 4-bit codes the first is in the low half. scales:
    [outputs, inputs / group], e4m3 where the format has byte_scales; without groups [outputs] or one number.
    tensor_scale: a factor of all.
    zero_points: [outputs, inputs / group] where the format has them, of any numeric type. Scales of groups are divided
    by the row's factor, a power of two, and rounded to ``weight.dtype``.
    """
    outputs, inputs = codes.shape[0], codes.shape[1] * 8 // weight.bits
    size, shape = weight.tile_inputs(inputs), weight.tiles_shape(outputs, inputs)
    if weight.byte_scales:
        # The kernel reads their absolute values: signs go to the codes.
        signs = scales.view(torch.uint8) & 128
        codes = codes ^ (signs | signs >> 4).repeat_interleave(weight.group * weight.bits // 8, 1)
        scales = (scales.view(torch.uint8) & 127).view(scales.dtype)
    tiled = _tiled(_in_kernel_order(codes, weight.bits), shape, size * weight.bits // 8)
    # Vectors of chunks (32 inputs each) come before rows and lanes, the chunks of a vector after them.
    vectors = tiled.unflatten(3, (-1, weight.vector(inputs), _LANES_OF_A_ROW, weight.bits))
    parts = [vectors.permute(0, 1, 3, 2, 5, 4, 6)]
    factors = torch.ones(outputs, device=codes.device)
    if weight.group == 0:
        factors *= scales.float()
    else:
        if not weight.byte_scales:
            factors = torch.ldexp(factors, torch.frexp(scales.float().abs().amax(1)).exponent.clamp(-126, 127))
            scales = scales.float() / factors[:, None] * 2.0**weight.scale_exponent
            scales = scales.to(getattr(torch, weight.dtype.value))
        numbers = [scales] if zero_points is None else [scales, zero_points.to(scales.dtype)]
        for each in numbers:
            stored = _tiled(each.view(torch.uint8), shape, size // weight.group * each.itemsize)
            parts.append(stored.unflatten(3, (-1, each.itemsize)).transpose(2, 3))
    if tensor_scale is not None:
        factors *= tensor_scale.float()
    return torch.cat([part.flatten(2) for part in parts], 2), factors


def unpacked_tiles(
    kernels: KernelRunner, problem: UnpackTiles, tiles: torch.Tensor, factors: torch.Tensor
) -> torch.Tensor:
    """The matrix [outputs, inputs] in ``problem.weight.dtype``, unpacked from tiles and factors by a kernel."""
    dtype = getattr(torch, problem.weight.dtype.value)
    matrix = torch.empty(problem.outputs, problem.inputs, dtype=dtype, device=tiles.device)
    kernels.launch(problem, lambda traits: unpack_plan(problem), (tiles, factors), [matrix])
    return matrix


def _in_kernel_order(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Each 8 codes in the kernels' order: 0 2 4 6 1 3 5 7 for 4 bits, 0 2 1 3 4 6 5 7 for 8 bits."""
    if bits == 8:
        return codes.unflatten(1, (-1, 2, 2)).transpose(2, 3).flatten(1)
    halves = torch.stack((codes & 15, codes >> 4), -1).unflatten(1, (-1, 2, 2))  # [outputs, inputs / 8, 2, 2, 2]
    even_first = halves.movedim(4, 2)  # which half, then pairs of bytes
    return (even_first[..., 0] | even_first[..., 1] << 4).flatten(1)


def _tiled(rows: torch.Tensor, shape: tuple[int, int, int], width: int) -> torch.Tensor:
    """Bytes [outputs, columns] as [slices of inputs, groups of outputs, 8, width], with zeros at the ends."""
    slices, groups, _ = shape
    padded = rows.new_zeros(groups * TILE_ROWS, slices * width)
    padded[: rows.shape[0], : rows.shape[1]] = rows
    return padded.view(groups, TILE_ROWS, slices, width).permute(2, 0, 1, 3)
