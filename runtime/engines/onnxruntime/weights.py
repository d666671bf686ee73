"""The artifact's weights as float32 arrays that all sessions of one engine share."""

from __future__ import annotations

import mmap
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from artifact.dtypes import DType
from runtime.engines.artifact_graph import mapped_bytes
from runtime.engines.onnxruntime.joined_weights import joined_weight
from runtime.engines.onnxruntime.widen_types import widened

# By number of axes: operators, and which input, that read a weight where it lies.
_READERS = {
    2: {("Gather", 0), ("FusedMatMul", 0), ("FusedMatMul", 1), ("Gemm", 1), ("MatMul", 1)},
    3: {("MoE", 2), ("MoE", 4), ("routed_experts", 3), ("routed_experts", 4)},
}


class WeightStore:
    """Weights by initializer name.

    A float32 weight (or an integer one) stays mapped from its safetensors file: no copy, and the operating system
    may drop and reload its pages. A float16 or bfloat16 weight is widened once into memory of the store.
    """

    def __init__(self, model: ir.Model, folder: Path) -> None:
        """The external initializers of ``model``, an artifact read from ``folder``; each is loaded at its first use."""
        self._folder = folder
        self._arrays: dict[str, np.ndarray] = {}
        self._values: dict[str, ort.OrtValue] = {}
        self._files: dict[str, str] = {}
        self._loaded: dict[tuple, np.ndarray] = {}  # tied weights may be two initializers over the same bytes
        self._stored = {
            name: value.const_value
            for name, value in model.graph.initializers.items()
            if isinstance(value.const_value, ir.ExternalTensor)
        }

    def attach(self, model: ir.Model, options: ort.SessionOptions) -> None:
        """Give a session that is about to be created from ``model`` the weights that the model uses.

        Matrices that are only multiplied with or looked up in are shared. Everything else (norms, biases,
        convolutions: small) goes into the model itself, because ONNX Runtime's constant folding would read a
        shared weight from the file, in the file's type.
        """
        for name, value in model.graph.initializers.items():
            array = self._array(name, value)
            if array is None:
                continue
            if not _is_streamed(value):
                value.const_value = ir.tensor(np.ascontiguousarray(array), name=name)
                continue
            value.const_value = self._reference(name, array)
            if name not in self._values:
                self._values[name] = ort.OrtValue.ortvalue_from_numpy(array)
            options.add_initializer(name, self._values[name])

    def _array(self, name: str, value: ir.Value) -> np.ndarray | None:
        """The weight that initializer ``name`` is; None for one of the graph's own."""
        joined, tensor = joined_weight(value), self._stored.get(name)
        if name in self._arrays:
            return self._arrays[name]
        if joined is not None:
            key, file = joined.key, joined.parts[0].location
            load = partial(joined.filled, _mapped, self._folder)
        elif tensor is not None:
            key, file = (tensor.location, tensor.offset, tensor.dtype, tuple(tensor.shape)), tensor.location
            load = partial(_load, tensor, self._folder)
        else:
            return None
        if key not in self._loaded:
            self._loaded[key] = load()
        self._arrays[name], self._files[name] = self._loaded[key], str(file)
        return self._arrays[name]

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

    @property
    def bytes(self) -> int:
        """Bytes of all weights that sessions use so far."""
        return self.mapped_bytes + self.copied_bytes

    def _unique(self) -> list[np.ndarray]:
        return list({id(array): array for array in self._arrays.values()}.values())


def _is_streamed(value: ir.Value) -> bool:
    """True for a matrix, or one of each expert, that only Gather and products read."""
    rank = 0 if value.shape is None else len(value.shape)
    return rank in _READERS and all((node.op_type, index) in _READERS[rank] for node, index in value.uses())


def _load(tensor: ir.ExternalTensor, folder: Path) -> np.ndarray:
    array = widened(_mapped(tensor, folder))
    # Offsets are not always multiples of the element size; kernels expect aligned data.
    return array if array.flags.aligned else array.copy()


def _mapped(tensor: ir.ExternalTensor, folder: Path) -> np.ndarray:
    """The tensor as it lies in its file."""
    dtype = DType.from_onnx(int(tensor.dtype)).numpy
    return mapped_bytes(tensor, folder).view(dtype).reshape(tuple(tensor.shape.numpy()))


def _is_mapped(array: np.ndarray) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)
