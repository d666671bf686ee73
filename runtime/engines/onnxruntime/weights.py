"""The artifact's weights as arrays that all sessions of one engine share."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np
import onnxruntime as ort

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.onnxruntime.dequantize import (
    Read,
    block_scales,
    block_zero_points,
    blocks_of,
    dequantized,
    dequantized_parts,
    factors_of_rows,
    row_scales,
    row_zero_points,
    scales_of_rows,
)
from hybridge.runtime.engines.onnxruntime.huge_pages import HugePages
from hybridge.runtime.engines.onnxruntime.linear_tiles import tile_zeros, tiles_shape, write_tiles
from hybridge.runtime.engines.onnxruntime.page_moves import LEAST_BYTES, PageMover
from hybridge.runtime.engines.onnxruntime.session_graph import (
    BLOCK_SCALES,
    BLOCK_ZEROS,
    BLOCKS,
    LINEAR,
    LINEAR_BYTES,
    LINEAR_FACTORS,
    LINEAR_SCALES,
    LINEAR_ZEROS,
    ROW_SCALES,
    ROW_ZEROS,
    STORED,
    WHOLE,
    GraphWeight,
    Part,
    QuantizedMatrix,
    StoredTensor,
)
from hybridge.runtime.engines.onnxruntime.weight_files import OpenFiles, WeightFiles

_FORMS: Mapping[str, Callable[[QuantizedMatrix, int, Read], np.ndarray]] = MappingProxyType(
    {
        BLOCKS: blocks_of,
        BLOCK_SCALES: block_scales,
        BLOCK_ZEROS: block_zero_points,
        LINEAR_FACTORS: factors_of_rows,
        LINEAR_SCALES: scales_of_rows,
        LINEAR_ZEROS: tile_zeros,
        ROW_SCALES: row_scales,
        ROW_ZEROS: row_zero_points,
    }
)
_LINEAR = (LINEAR, LINEAR_BYTES)
# Kernels read numbers at multiples of their size. Tensors of bytes may hold numbers of 16 bits.
_SMALLEST_UNIT = 2
_NARROW_NUMPY = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def widened(array: np.ndarray) -> np.ndarray:
    """``array`` as float32 if it is float16 or bfloat16, else itself."""
    return array.astype(np.float32) if array.dtype in _NARROW_NUMPY else array


class WeightStore:
    """Weights by initializer name.

    A float32 weight (or an integer one, or a table of any type) stays mapped from its safetensors file: no copy, and
    the operating system may drop and reload its pages. Matrices of 16 bits or e4m3 that the operator Linear reads are
    mapped, too; if they are large, a thread moves them to huge pages later (page_moves.py). If it reads several tensors
    as one matrix, they are copied to huge pages. Other float16 or bfloat16 weights are widened once into memory of the
    store; quantised ones are dequantised or laid out there. Packed numbers that every session copies are not stored.

    The files must not be changed in place while the store exists: mapped weights would change, and reading beyond the
    end of a file that was cut ends the process. To replace a file by another is safe.
    """

    def __init__(self, folder: Path) -> None:
        """For graphs of the artifact in ``folder``; each weight is loaded at its first use."""
        self._files = WeightFiles(folder)
        self._arrays: dict[str, np.ndarray] = {}
        self._values: dict[str, ort.OrtValue] = {}
        self._pages = HugePages()
        self._loaded: dict[tuple, np.ndarray] = {}  # tied weights may be two initializers over the same bytes
        self._copies: dict[StoredTensor, np.ndarray] = {}  # of tensors that are not aligned in their file
        self._streamed: list[StoredTensor] = []  # mapped, and read by every step
        self._movers: list[PageMover] = []

    def attach(self, weights: Iterable[GraphWeight], options: ort.SessionOptions) -> list[ort.OrtValue]:
        """Add the ``weights`` of a model to ``options``; keep the returned values until the session has been created.

        Shared weights stay where they are. All others (norms, biases, convolutions: small) are copied into the model,
        because ONNX Runtime's constant folding would read a shared weight from the file, in the file's type.
        ArtifactError when a file is missing, too short or outside of the artifact.
        """
        given: dict[str, ort.OrtValue] = {}
        with self._files.open() as files:
            for weight in weights:
                if weight.packed:
                    given[weight.name] = _value(weight, _filled(weight, files.bytes_of))
                    continue
                if weight.name not in self._values:
                    self._values[weight.name] = _value(weight, self._array(weight, files))
                if weight.shared:
                    options.add_initializer(weight.name, self._values[weight.name])
                else:
                    given[weight.name] = self._values[weight.name]
        if given:
            options.add_external_initializers(list(given), list(given.values()))
        self._move_streamed()
        return list(given.values())

    def settle(self) -> None:
        """Wait until no pages are moved any more, which takes long on a busy machine; for measurements of steps."""
        for mover in self._movers:
            mover.join()

    def close(self) -> None:
        """Move no more pages. Weights stay valid."""
        for mover in self._movers:
            mover.stop()

    @property
    def mapped_bytes(self) -> int:
        """Bytes that are used directly from the artifact's files, or were moved from there to huge pages."""
        return sum(array.nbytes for array in self._unique() if _is_mapped(array))

    @property
    def copied_bytes(self) -> int:
        """Bytes that were widened or realigned into memory."""
        return sum(array.nbytes for array in self._unique() if not _is_mapped(array))

    @property
    def bytes(self) -> int:
        """Bytes of all weights that sessions use so far."""
        return self.mapped_bytes + self.copied_bytes

    def _array(self, weight: GraphWeight, files: OpenFiles) -> np.ndarray:
        key = weight.parts, weight.joined, weight.interleaved, weight.form, weight.block
        if key not in self._loaded:
            self._loaded[key] = self._new_array(weight, files)
        self._arrays[weight.name] = self._loaded[key]
        return self._loaded[key]

    def _new_array(self, weight: GraphWeight, files: OpenFiles) -> np.ndarray:
        part = weight.parts[0]
        if isinstance(part, StoredTensor) and len(weight.parts) == 1 and weight.form in (LINEAR_BYTES, STORED):
            return self._stored(weight, part, files).view(part.dtype.numpy).reshape(part.shape)
        return self._linear(weight, files) if weight.form in _LINEAR else _filled(weight, files.bytes_of)

    def _stored(self, weight: GraphWeight, part: StoredTensor, files: OpenFiles) -> np.ndarray:
        """The bytes of ``part`` [nbytes] uint8: mapped, or one copy where they are not aligned in the file."""
        if part.offset % max(part.dtype.nbytes(1), _SMALLEST_UNIT) == 0:
            found = files.mapped(part)
            if weight.form == LINEAR_BYTES:
                self._streamed.append(part)
            return found
        place = replace(part, dtype=DType.UINT8, shape=(part.dtype.nbytes(prod(part.shape)),))
        if place not in self._copies:
            copy = self._pages.zeros(*place.shape)
            files.read(place, copy)
            self._copies[place] = copy
        return self._copies[place]

    def _move_streamed(self) -> None:
        """Move new weights that every step reads to huge pages, in the background."""
        parts, self._streamed = self._files.parts(self._streamed), []
        if sum(part.nbytes for part in parts) >= LEAST_BYTES:
            mover = PageMover(parts)
            mover.start()
            weakref.finalize(self, mover.stop)
            self._movers.append(mover)

    def _linear(self, weight: GraphWeight, files: OpenFiles) -> np.ndarray:
        """The matrix of a product by the operator Linear, or those of all experts, one after another."""
        shapes = [tiles_shape(part) if isinstance(part, QuantizedMatrix) else part.shape for part in weight.parts]
        lines, width = sum(shape[0] for shape in shapes), shapes[0][1]
        found, start = self._pages.zeros(lines * width).reshape(lines, width), 0
        for part, (count, _) in zip(weight.parts, shapes, strict=True):
            target = found[start : start + count]
            if isinstance(part, QuantizedMatrix):
                write_tiles(part, files.bytes_of, files.read, target)
            else:
                files.read(part, target)
            start += count
        return found

    def _unique(self) -> list[np.ndarray]:
        return list({array.ctypes.data: array for array in self._arrays.values()}.values())


def _value(weight: GraphWeight, array: np.ndarray) -> ort.OrtValue:
    (part, *_) = weight.parts
    if weight.form == STORED and isinstance(part, StoredTensor):
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, part.dtype.onnx)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _filled(weight: GraphWeight, read: Read) -> np.ndarray:
    """The array of ``weight``; of a joined one, only one matrix at a time is widened."""
    if weight.joined is None and len(weight.parts) > 1:
        return np.concatenate([_formed(weight, part, read) for part in weight.parts])
    if weight.joined is None:
        return _aligned(widened(_formed(weight, weight.parts[0], read)))
    _, rows, columns = weight.joined
    # A part has the rows of all experts, of one, or one half of these.
    parts = _parts(weight, rows, read)
    matrices = (matrix for part in parts for matrix in part.reshape(-1, min(rows, part.size // columns), columns))
    whole = np.empty(weight.joined, np.float32 if weight.form in (WHOLE, BLOCK_SCALES) else np.uint8)
    if not weight.interleaved:
        flat, start = whole.reshape(-1, columns), 0
        for matrix in matrices:
            flat[start : start + len(matrix)] = matrix
            start += len(matrix)
        return whole
    halves = (half for matrix in matrices for half in _halves(matrix, rows))
    for index, half in enumerate(halves):
        whole[index // 2, index % 2 :: 2] = half
    return whole


def _aligned(array: np.ndarray) -> np.ndarray:
    """``array``, or a copy: offsets are not always multiples of the element size, but kernels expect aligned data."""
    return array if array.flags.aligned else array.copy()


def _formed(weight: GraphWeight, part: Part, read: Read) -> np.ndarray:
    """``part`` in the form of ``weight``."""
    if weight.form == WHOLE:
        return _numbers(part, read)
    assert isinstance(part, QuantizedMatrix)
    return _FORMS[weight.form](part, weight.block, read)


def _halves(matrix: np.ndarray, rows: int) -> list[np.ndarray]:
    """The halves of a matrix of all ``rows`` of an expert; a matrix of half the rows is one of them."""
    return [matrix] if len(matrix) * 2 == rows else [matrix[: rows // 2], matrix[rows // 2 :]]


def _numbers(part: Part, read: Read) -> np.ndarray:
    """The tensor as it is in its file, or the numbers of a quantised matrix."""
    if isinstance(part, QuantizedMatrix):
        return dequantized(part, read)
    return read(part).view(part.dtype.numpy).reshape(part.shape)


def _parts(weight: GraphWeight, rows: int, read: Read) -> Iterator[np.ndarray]:
    """Each part in the form of ``weight``; a float32 matrix of several experts ``rows`` rows (one expert) at a time."""
    for part in weight.parts:
        if weight.form == WHOLE and isinstance(part, QuantizedMatrix) and part.shape[0] > rows:
            yield from dequantized_parts(part, rows, read)
        else:
            yield _formed(weight, part, read)


def _is_mapped(array: np.ndarray) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)
