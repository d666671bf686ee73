"""The first kernel of chunked ``gated_delta_rule`` for 16-bit data: two value heads of a key head at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.ops.gated_delta_rule_call import DeltaCall
from hybridge.trt_plugins.kernels.source import KernelSource

FILE, ENTRY = "gated_delta_rule/prefill_prepare_pairs.cu", "gated_delta_rule_prepare_pairs"
THREADS = 128
BLOCKS_AT_ONCE = 4  # of a multiprocessor
_CHUNK, _HEADS = 64, 2
_TRIANGLE_BYTES = (4 + 6) * 16 * 16 * 4  # HeadTriangle
_HEAD_FLOATS = 3 * _CHUNK + 6 * 16 + 2 * _CHUNK  # HeadTokens and HeadFactors
_ITEM_WORDS = 4 + 2 * 8
_ALIGNMENT = 128


@dataclass(frozen=True)
class Pairs:
    """The macros of prefill_prepare_pairs.cu. tile_bytes: of a chunk's k or q."""

    dtype: DType
    key_size: int
    normed: bool
    tile_bytes: int
    aligned: bool = True
    group_products: bool = True

    @classmethod
    def of(cls, call: DeltaCall, tile_bytes: int, aligned: bool, group_products: bool) -> Pairs:
        """group_products: where ``takes`` of the second kernel accepts the call."""
        return cls(call.dtype, call.key_size, call.normed, tile_bytes, aligned, group_products)

    @property
    def shared_bytes(self) -> int:
        """Size of Shared in prefill_prepare_pairs.cu."""
        tiles = 2 * (-(-self.tile_bytes // _ALIGNMENT) * _ALIGNMENT)
        floats = _HEADS * _HEAD_FLOATS + 2 * _CHUNK + _ITEM_WORDS
        used = tiles + _HEADS * _TRIANGLE_BYTES + 4 * floats
        return -(-used // _ALIGNMENT) * _ALIGNMENT

    def source(self) -> KernelSource:
        defines = {
            "DATA_T": self.dtype,
            "KEY_SIZE": self.key_size,
            "NORMED": self.normed,
            "ALIGNED": self.aligned,
            "GROUP_PRODUCTS": self.group_products,
        }
        return KernelSource.of(FILE, ENTRY, defines)


def pairs_sources() -> Iterator[KernelSource]:
    """Both types and products, and sizes with and without norms and alignment."""
    base = Pairs(DType.BFLOAT16, 128, True, 0)
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        for key_size, normed in product((128, 64), (True, False)):
            sized = replace(base, dtype=dtype, key_size=key_size, normed=normed)
            yield from (replace(sized, group_products=whole).source() for whole in (True, False))
    for key_size in (16, 96, 192, 256):
        for aligned in (True, False):
            sized = replace(base, key_size=key_size, normed=aligned, aligned=aligned, group_products=False)
            yield sized.source()
