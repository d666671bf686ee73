"""The artifact's weights as float32 arrays that all sessions of one engine share."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from artifact.dtypes import DType
from artifact.errors import ArtifactError
from runtime.engines.onnxruntime.widen_types import widened


class WeightStore:
    """Weights by initializer name.

    A float32 weight (or an integer one) stays mapped from its safetensors file: no copy, and the operating system
    may drop and reload its pages. A float16 or bfloat16 weight is widened once into memory of the store.
    """

    def __init__(self, model: ir.Model, folder: Path) -> None:
        """Map or widen every external initializer of ``model``, an artifact read from ``folder``."""
        self._arrays: dict[str, np.ndarray] = {}
        self._files: dict[str, str] = {}
        loaded: dict[tuple, np.ndarray] = {}  # tied weights may be two initializers over the same bytes
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                key = (tensor.location, tensor.offset, tensor.dtype, tuple(tensor.shape))
                if key not in loaded:
                    loaded[key] = _load(tensor, folder)
                self._arrays[name] = loaded[key]
                self._files[name] = str(tensor.location)
        self._values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self._arrays.items()}

    def attach(self, model: ir.Model, options: ort.SessionOptions) -> None:
        """Give a session that is about to be created from ``model`` the weights that the model uses.

        Matrices that are only multiplied with or looked up in are shared. Everything else (norms, biases,
        convolutions: small) goes into the model itself, because ONNX Runtime's constant folding would read a
        shared weight from the file, in the file's type.
        """
        for name, value in model.graph.initializers.items():
            array = self._arrays.get(name)
            if array is None:
                continue
            if not _is_streamed(value):
                value.const_value = ir.tensor(np.ascontiguousarray(array), name=name)
                continue
            value.const_value = self._reference(name, array)
            options.add_initializer(name, self._values[name])

    def _reference(self, name: str, array: np.ndarray) -> ir.ExternalTensor:
        """What ONNX Runtime lets be overridden: a reference to the weight's file."""
        dtype, shape = ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape)
        return ir.ExternalTensor(self._files[name], None, None, dtype, shape=shape, name=name)

    @property
    def mapped_bytes(self) -> int:
        """Bytes that are used straight from the artifact's files."""
        return sum(array.nbytes for array in self._unique() if _is_mapped(array))

    @property
    def copied_bytes(self) -> int:
        """Bytes that were widened or realigned into memory."""
        return sum(array.nbytes for array in self._unique() if not _is_mapped(array))

    def _unique(self) -> list[np.ndarray]:
        return list({id(array): array for array in self._arrays.values()}.values())


def _is_streamed(value: ir.Value) -> bool:
    """True for a matrix that only Gather and matrix products read."""
    readers = {("Gather", 0), ("FusedMatMul", 0), ("FusedMatMul", 1), ("Gemm", 1), ("MatMul", 1)}
    two_axes = value.shape is not None and len(value.shape) == 2
    return two_axes and all((node.op_type, index) in readers for node, index in value.uses())


def _load(tensor: ir.ExternalTensor, folder: Path) -> np.ndarray:
    path, dtype = folder / tensor.location, DType.from_onnx(int(tensor.dtype)).numpy
    shape, offset = tuple(tensor.shape.numpy()), tensor.offset or 0
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    try:
        if path.stat().st_size < offset + nbytes:
            raise ArtifactError(
                f"{tensor.location}: expected {offset + nbytes} bytes for {tensor.name}, found "
                f"{path.stat().st_size}: the file is truncated, export the checkpoint again"
            )
        raw = np.memmap(path, np.uint8, "r", offset, (nbytes,)) if nbytes else np.empty(0, np.uint8)
    except OSError as error:
        raise ArtifactError(
            f"{tensor.location}: cannot be read ({error.strerror or error}): export the checkpoint again"
        ) from error
    array = widened(raw.view(dtype).reshape(shape))
    # Offsets are not always multiples of the element size; kernels expect aligned data.
    return array if array.flags.aligned else array.copy()


def _is_mapped(array: np.ndarray) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)
