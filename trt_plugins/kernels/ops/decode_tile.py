"""Shared by the planners of one-token kernels: the state in registers, strides, access widths."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.source import CUDA_TYPES

ACCESS_BYTES = 16
_LANE_ELEMENTS = 16  # of a row in one lane, with as many of B and of C
_WARP = 32
BYTE_TYPES = {DType.INT8: "signed char", DType.UINT8: "E4m3"}
"""The CUDA types of states of 8 bits: int8, and e4m3 as the bytes that it is."""
_STATE_TYPES = {**CUDA_TYPES, **BYTE_TYPES}


@dataclass(frozen=True)
class StateTile:
    """The macros of decode_tile.cuh. state_bytes: the widest access to the state; passes: rows of a lane at once."""

    dtype: DType
    state: DType
    head_dim: int
    state_size: int
    state_bytes: int
    passes: int
    threads: int

    @property
    def state_access(self) -> int:
        """Elements of one access to a row of the state."""
        return math.gcd(self.state_bytes // self.state.itemsize, self.state_size)

    @property
    def lanes(self) -> int:
        """Lanes of a row: the fewest that hold at most _LANE_ELEMENTS of it each."""
        units = self.state_size // self.state_access
        units_of_lane = max(1, _LANE_ELEMENTS // self.state_access)
        return min(_WARP, 1 << (-(-units // units_of_lane) - 1).bit_length())

    @property
    def rows_of_block(self) -> int:
        """Rows of one head."""
        return self.threads // self.lanes * self.passes

    @property
    def parts(self) -> int:
        """Blocks that share a head."""
        return -(-self.head_dim // self.rows_of_block)

    @property
    def accesses(self) -> int:
        """A lane's accesses that are in flight at once."""
        return -(-self.state_size // (self.state_access * self.lanes)) * self.passes

    def with_passes(self, most: int) -> StateTile:
        """``most`` passes, a power of two, or fewer where the rows of a head then fill the block."""
        passes = most
        while passes > 1 and replace(self, passes=passes // 2).rows_of_block >= self.head_dim:
            passes //= 2
        return replace(self, passes=passes)

    def with_threads(self, most: int) -> StateTile:
        """As many threads as the rows of a head fill, ``most`` at most."""
        needed = -(-self.head_dim * self.lanes // (self.passes * _WARP)) * _WARP
        return replace(self, threads=min(most, needed))

    def defines(self) -> dict[str, object]:
        return {
            "DATA_T": CUDA_TYPES[self.dtype],
            "STATE_T": _STATE_TYPES[self.state],
            "HEAD_DIM": self.head_dim,
            "STATE_SIZE": self.state_size,
            "LANES": self.lanes,
            "STATE_ACCESS": self.state_access,
            "PASSES": self.passes,
            "THREADS": self.threads,
        }


def access_bytes(*layouts: TensorLayout, axes: int) -> int:
    """Bytes of the widest access that stays aligned at every index of the first ``axes`` axes."""
    item = layouts[0].dtype.itemsize
    strides = [stride * item for layout in layouts for stride in layout.strides[:axes]]
    return math.gcd(ACCESS_BYTES, *(layout.alignment for layout in layouts), *strides)
