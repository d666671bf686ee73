"""The schemes that ``hybridge quantize`` writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.exporter.checkpoint.quantized.nibbles import packed_e2m1
from hybridge.exporter.rounding.rounding import (
    E2M1,
    E4M3,
    e4m3_divisor,
    e4m3_scales,
    integer_levels,
    powers_of_two,
    scales_as,
)
from hybridge.quantization.packing import packed_words
from hybridge.quantization.scheme import Layout, MatrixContext, QuantizedRows, Scheme


@dataclass(frozen=True)
class IntegerScheme(Scheme):
    """Signed integers of ``bits`` in int32 words; ``group`` columns share a scale and, with ``zero_points``, one of
    these; None: a row.
    """

    bits: int
    group: int | None
    zero_points: bool = False
    format: ClassVar[str] = "pack-quantized"

    @property
    def name(self) -> str:
        group = "a scale per row" if self.group is None else f"groups of {self.group}"
        return f"int{self.bits}, {group}{', zero points' if self.zero_points else ''}"

    @property
    def rows_at_once(self) -> int:
        return 32 // self.bits if self.zero_points else 1

    def layout(self, rows: int, columns: int, scale: DType) -> Layout:
        groups = columns // (self.group or columns)
        found: dict[str, tuple[DType, tuple[int, ...]]] = {
            "weight_packed": (DType.INT32, (rows, math.ceil(columns * self.bits / 32))),
            "weight_scale": (scale, (rows, groups)),
            "weight_shape": (DType.INT64, (2,)),
        }
        if self.zero_points:  # packed along the rows
            found["weight_zero_point"] = DType.INT32, (math.ceil(rows * self.bits / 32), groups)
        return found

    def rows(self, weights: np.ndarray, context: MatrixContext) -> QuantizedRows:
        group, storable = self.group or weights.shape[1], scales_as(context.scale.numpy)
        numbers, scales = context.rounded(weights, group, integer_levels(self.bits, self.zero_points), storable)
        parts = {"weight_scale": scales.astype(context.scale.numpy)}
        stored = numbers
        if self.zero_points:
            groups, half = numbers.reshape(*scales.shape, -1), 1 << (self.bits - 1)
            zeros = np.clip(-half - groups.min(2), -half, half - 1)  # any that let the group's integers fit
            stored = (groups + zeros[:, :, None]).reshape(numbers.shape)
            parts["weight_zero_point"] = np.ascontiguousarray(packed_words(zeros.T, self.bits).T)
        parts["weight_packed"] = packed_words(stored, self.bits)
        return QuantizedRows(parts, _products(numbers, scales))

    def whole(self, rows: int, columns: int, context: MatrixContext) -> Mapping[str, np.ndarray]:
        return {"weight_shape": np.array([rows, columns], "<i8")}

    def weights_config(self) -> dict[str, Any]:
        strategy = "channel" if self.group is None else "group"
        sizes = {"num_bits": self.bits, "type": "int", "strategy": strategy, "group_size": self.group}
        return {**sizes, "symmetric": not self.zero_points}


@dataclass(frozen=True)
class Fp8Scheme(Scheme):
    """e4m3 with one scale per row."""

    format: ClassVar[str] = "float-quantized"

    @property
    def name(self) -> str:
        return "fp8, a scale per row"

    def layout(self, rows: int, columns: int, scale: DType) -> Layout:
        return {"weight": (DType.FLOAT8E4M3FN, (rows, columns)), "weight_scale": (scale, (rows, 1))}

    def rows(self, weights: np.ndarray, context: MatrixContext) -> QuantizedRows:
        storable = scales_as(context.scale.numpy)
        numbers, scales = context.rounded(weights, weights.shape[1], E4M3, storable)
        parts = {
            "weight": numbers.astype(ml_dtypes.float8_e4m3fn),
            "weight_scale": scales.astype(context.scale.numpy),
        }
        return QuantizedRows(parts, _products(numbers, scales))

    def weights_config(self) -> dict[str, Any]:
        return {"num_bits": 8, "type": "float", "strategy": "channel", "group_size": None}


@dataclass(frozen=True)
class NvFp4Scheme(Scheme):
    """E2M1 in groups of 16 with e4m3 scales, which one float32 number divides."""

    format: ClassVar[str] = "nvfp4-pack-quantized"
    group: ClassVar[int] = 16

    @property
    def name(self) -> str:
        return "nvfp4, groups of 16"

    def layout(self, rows: int, columns: int, scale: DType) -> Layout:
        return {
            "weight_packed": (DType.UINT8, (rows, columns // 2)),
            "weight_scale": (DType.FLOAT8E4M3FN, (rows, columns // self.group)),
            "weight_global_scale": (DType.FLOAT32, (1,)),
        }

    def rows(self, weights: np.ndarray, context: MatrixContext) -> QuantizedRows:
        divisor = e4m3_divisor(context.peak)
        numbers, scales = context.rounded(weights, self.group, E2M1, e4m3_scales(divisor))
        stored = (scales * divisor).astype(ml_dtypes.float8_e4m3fn)
        return QuantizedRows(
            {"weight_packed": packed_e2m1(numbers), "weight_scale": stored}, _products(numbers, scales)
        )

    def whole(self, rows: int, columns: int, context: MatrixContext) -> Mapping[str, np.ndarray]:
        return {"weight_global_scale": np.array([e4m3_divisor(context.peak)], np.float32)}

    def weights_config(self) -> dict[str, Any]:
        return {
            "num_bits": 4,
            "type": "float",
            "strategy": "tensor_group",
            "group_size": self.group,
            "scale_dtype": "torch.float8_e4m3fn",
        }


@dataclass(frozen=True)
class MxFp4Scheme(Scheme):
    """E2M1 in groups of 32, whose scales are powers of two (OCP Microscaling 1.0)."""

    format: ClassVar[str] = "mxfp4-pack-quantized"
    group: ClassVar[int] = 32

    @property
    def name(self) -> str:
        return "mxfp4, groups of 32"

    def layout(self, rows: int, columns: int, scale: DType) -> Layout:
        return {
            "weight_packed": (DType.UINT8, (rows, columns // 2)),
            "weight_scale": (DType.UINT8, (rows, columns // self.group)),
        }

    def rows(self, weights: np.ndarray, context: MatrixContext) -> QuantizedRows:
        numbers, scales = context.rounded(weights, self.group, E2M1, powers_of_two, (0.5, 2.0))
        exponents = (np.log2(scales) + 127).astype(np.uint8)
        return QuantizedRows(
            {"weight_packed": packed_e2m1(numbers), "weight_scale": exponents}, _products(numbers, scales)
        )

    def weights_config(self) -> dict[str, Any]:
        return {
            "num_bits": 4,
            "type": "float",
            "strategy": "group",
            "group_size": self.group,
            "scale_dtype": "torch.uint8",
        }


def _products(numbers: np.ndarray, scales: np.ndarray) -> np.ndarray:
    groups = numbers.reshape(*scales.shape, -1)
    return (groups * scales[:, :, None]).reshape(numbers.shape)
