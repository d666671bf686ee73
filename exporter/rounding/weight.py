"""A full-precision weight that is rounded to the nearest numbers of a format while it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import ml_dtypes
import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.nibbles import packed_e2m1, signed_from_numbers
from hybridge.exporter.checkpoint.quantized.tensor import GraphTensor, QuantizedTensor
from hybridge.exporter.rounding.blocks import float32_rows, in_threads, peak_of, row_blocks
from hybridge.exporter.rounding.roles import FLOAT_GROUPS, FP8, INT4, INT8, MXFP4, NVFP4
from hybridge.exporter.rounding.rounding import (
    E2M1,
    E4M3,
    Levels,
    Storable,
    e4m3_divisor,
    e4m3_scales,
    integer_levels,
    parts_to_try,
    powers_of_two,
    rounded,
    scales_as,
    scales_of,
)

_LEVELS = {INT4: integer_levels(4), INT8: integer_levels(8), FP8: E4M3, NVFP4: E2M1, MXFP4: E2M1}
_DTYPES = {
    INT4: DType.INT4,
    INT8: DType.INT8,
    FP8: DType.FLOAT8E4M3FN,
    NVFP4: DType.FLOAT4E2M1,
    MXFP4: DType.FLOAT4E2M1,
}
# Types of scales that a format prescribes; others have the type of the weight.
_SCALES = {NVFP4: DType.FLOAT8E4M3FN, MXFP4: DType.BFLOAT16}


@dataclass(frozen=True)
class Peak:
    """The largest magnitude of the weights in ``slots``, which are read when it is needed first."""

    slots: tuple[TensorSlot, ...]

    @cached_property
    def value(self) -> float:
        """CheckpointError: a weight is not finite."""
        return max(map(peak_of, self.slots))


@dataclass(frozen=True)
class RoundedWeight:
    """The matrix in ``slot`` in the format ``form``; ``group`` columns share a scale, None: a row.

    peak: of all weights that share a global scale. search: integers get the scales of least squared error, which takes
    about twenty times as long.
    The weight is read once for the scales and once for the numbers, in blocks of rows. CheckpointError, while it
    is written: a weight is not finite.
    """

    slot: TensorSlot
    form: str
    group: int | None
    peak: Peak
    search: bool = False

    def tensor(self) -> QuantizedTensor:
        """The quantised weight; its numbers are computed when they are read."""
        rows, columns = self.slot.shape
        shape = (rows,) if self.group is None else (rows, columns // self.group)
        return QuantizedTensor(
            self.slot.name,
            f"{self.form}, rounded to nearest",
            (rows, columns),
            GraphTensor(_DTYPES[self.form], (rows, columns), blocks=lambda: self._blocks(self._numbers)),
            GraphTensor(self._scale, shape, blocks=lambda: self._blocks(self._scales)),
            self.group,
            (self.slot,),
            global_scale=None if self.form != NVFP4 else GraphTensor(DType.FLOAT32, (), blocks=self._global_scale),
            rounded=True,
        )

    def logical_slot(self) -> TensorSlot:
        """A slot for the weight with the type and the number of bytes that it has in the artifact."""
        tensor = self.tensor()
        nbytes = sum(part.dtype.nbytes(prod(part.shape)) for part in tensor.parts.values())
        return TensorSlot(
            self.slot.name, tensor.values.dtype, self.slot.shape, self.slot.path, self.slot.offset, nbytes
        )

    @property
    def _scale(self) -> DType:
        return _SCALES.get(self.form, self.slot.dtype)

    @property
    def _width(self) -> int:
        return self.group or self.slot.shape[1]

    @cached_property
    def _divisor(self) -> np.float32:
        return e4m3_divisor(self.peak.value)

    @cached_property
    def _rounding(self) -> tuple[int, Levels, Storable]:
        if self.form == NVFP4:
            return self._width, E2M1, e4m3_scales(self._divisor)
        return self._width, _LEVELS[self.form], powers_of_two if self.form == MXFP4 else scales_as(self._scale.numpy)

    def _blocks(self, converted: Callable[[slice], np.ndarray]) -> Iterator[np.ndarray]:
        _ = self._rounding, self._best_scales  # computed before the threads need them
        yield from in_threads(converted, self._parts())

    def _parts(self) -> Iterator[slice]:
        return row_blocks(*self.slot.shape)

    @cached_property
    def _best_scales(self) -> np.ndarray | None:
        """float32 [rows, groups]; None without a search."""
        if not self.search:
            return None
        parts = parts_to_try(True, self._rounding[1])
        found = in_threads(
            lambda part: rounded(float32_rows(self.slot, part), *self._rounding, parts)[1], self._parts()
        )
        return np.concatenate(list(found))

    def _numbers(self, part: slice) -> np.ndarray:
        weights, scales = float32_rows(self.slot, part), self._best_scales
        if scales is None:
            numbers = rounded(weights, *self._rounding)[0]
        else:
            groups = weights.reshape(len(weights), -1, self._width) / scales[part, :, None]
            numbers = self._rounding[1].nearest(groups).reshape(weights.shape)
        if self.form == INT4:
            return signed_from_numbers((numbers + 8).astype(np.uint8), 4)
        return packed_e2m1(numbers) if self.form in FLOAT_GROUPS else numbers.astype(_DTYPES[self.form].numpy)

    def _scales(self, part: slice) -> np.ndarray:
        best = self._best_scales
        scales = scales_of(float32_rows(self.slot, part), *self._rounding) if best is None else best[part]
        if self.form == NVFP4:
            return (scales * self._divisor).astype(ml_dtypes.float8_e4m3fn)
        return scales.astype(self._scale.numpy)

    def _global_scale(self) -> Iterator[np.ndarray]:
        yield np.float32(1) / np.array([self._divisor])
