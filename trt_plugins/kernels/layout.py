"""Element type, shape and strides of a tensor in device memory."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError


@dataclass(frozen=True)
class TensorLayout:
    """A tensor in device memory; ``strides`` count elements, not bytes.

    alignment: bytes that the address is a multiple of. The default holds for whole allocations and for most slices.
    """

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int = 16

    @classmethod
    def contiguous(cls, dtype: DType, shape: tuple[int, ...]) -> TensorLayout:
        """The row-major layout of ``shape``, which is what TensorRT calls linear."""
        strides, step = [], 1
        for size in reversed(shape):
            strides.append(step)
            step *= max(size, 1)
        return cls(dtype, tuple(shape), tuple(reversed(strides)))

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are in row-major order without gaps; strides of axes of size 1 do not matter."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return False
            step *= max(size, 1)
        return True

    def need_dense_tail(self, name: str, axes: int) -> None:
        """UnsupportedError unless the last ``axes`` axes are contiguous, as the kernels read them as one run."""
        tail = TensorLayout(self.dtype, self.shape[-axes:], self.strides[-axes:])
        if not tail.is_contiguous:
            raise UnsupportedError(
                f"expected {name} with its last {axes} axes contiguous, found strides {list(self.strides)} "
                f"for shape {list(self.shape)}; make it contiguous"
            )
